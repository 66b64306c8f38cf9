//! The meaning of the attributes: the derive's input with nothing left to interpret.

use burn_dist_layout::LayoutText;
use burn_dist_layout::policy::{ContextParallel, ShardStrategy, UnitPolicy};
use syn::{Expr, Generics, Ident, Type};

/// The struct or enum the derive stands on.
pub(crate) struct Module {
    pub(crate) ident: Ident,
    pub(crate) generics: Generics,
    /// On the type: what every instance is as a unit.
    pub(crate) unit: Unit,
    pub(crate) body: Body,
}

impl Module {
    /// The types that must have a plan of their own.
    pub(crate) fn required(&self) -> Vec<&Type> {
        let required = |rule: &Rule| matches!(rule, Rule::Nested { required: true, .. });
        match &self.body {
            Body::Struct(fields) => fields
                .iter()
                .filter(|field| required(&field.rule))
                .map(|field| &field.ty)
                .collect(),
            Body::Enum(variants) => variants
                .iter()
                .filter_map(|variant| variant.content.as_ref())
                .filter(|content| required(&content.rule))
                .map(|content| &content.ty)
                .collect(),
        }
    }
}

pub(crate) enum Body {
    Struct(Vec<Field>),
    Enum(Vec<Variant>),
}

/// A named field of a struct, or what a variant of its name holds.
pub(crate) struct Field {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
    pub(crate) rule: Rule,
    pub(crate) stage: Option<Stage>,
}

/// A variant of an enum; `content` is `None` unless it is a tuple of one, the only form Burn's `Module` takes.
pub(crate) struct Variant {
    pub(crate) name: Ident,
    pub(crate) content: Option<Field>,
}

/// Which stage of a pipeline has a field.
pub(crate) enum Stage {
    /// `first`: the first one.
    First,
    /// `last`: the last one.
    Last,
    /// `stages`: a list of blocks, evenly over all of them.
    Blocks,
    /// `stages = [1.0, 2.0]`: by what each block costs.
    Weights(Box<Expr>),
}

/// The rule of one field.
pub(crate) enum Rule {
    /// `#[module(skip)]`: Burn never visits it, so neither do we.
    Hidden,
    /// `#[parallel(skip)]`: its parameters stay whole on every rank.
    Skip,
    /// No style: its own plan is used, if it has one; with `required` it has to (`#[parallel(nested)]`).
    Nested { unit: Unit, required: bool },
    /// A style: whatever the field holds is one leaf of the plan.
    Styled(Box<Mark>),
}

/// A style and its options.
pub(crate) struct Mark {
    pub(crate) style: Style,
    /// The axis the user named, of experts perhaps several; `None` leaves the default, which a mesh may lack.
    pub(crate) axes: Option<Vec<String>>,
    pub(crate) input: Option<LayoutText>,
    pub(crate) output: Option<LayoutText>,
    pub(crate) heads: Option<Heads>,
    pub(crate) unit: Unit,
}

/// The policy of a module as a unit; any option makes it one.
#[derive(Default)]
pub(crate) struct Unit {
    /// `unit`: gathered and freed as a whole.
    pub(crate) unit: bool,
    /// `checkpoint`: its activations are made again.
    pub(crate) checkpoint: bool,
    /// `strategy = "zero2"`: what shard axes do with it.
    pub(crate) strategy: Option<ShardStrategy>,
    /// `precision = "bf16"`: what it computes in.
    pub(crate) precision: Option<UnitPolicy>,
    /// `context = "ring"`: how its attention gets keys that other ranks have.
    pub(crate) context: Option<ContextParallel>,
}

impl Unit {
    pub(crate) const KEYS: [&str; 5] = ["unit", "checkpoint", "strategy", "precision", "context"];
}

/// A count the axis has to divide.
pub(crate) struct Heads {
    pub(crate) count: Expr,
    /// The name of what is counted, for the error message: `kv heads`.
    pub(crate) label: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Colwise,
    Rowwise,
    Vocab,
    Sequence,
    Replicate,
    Experts,
}

impl Style {
    /// The style an attribute key names.
    pub(crate) fn from_key(key: &str) -> Option<Self> {
        Some(match key {
            "colwise" => Self::Colwise,
            "rowwise" => Self::Rowwise,
            "vocab" => Self::Vocab,
            "sequence" => Self::Sequence,
            "replicate" => Self::Replicate,
            "experts" => Self::Experts,
            _ => return None,
        })
    }

    /// The variant of `burn_dist::parallel::Style`.
    pub(crate) fn variant(self) -> &'static str {
        match self {
            Self::Colwise => "Colwise",
            Self::Rowwise => "Rowwise",
            Self::Vocab => "Vocab",
            Self::Sequence => "Sequence",
            Self::Replicate => "Replicate",
            Self::Experts => "Experts",
        }
    }

    /// Returns whether the style splits weights over its axis.
    pub(crate) fn splits(self) -> bool {
        matches!(
            self,
            Self::Colwise | Self::Rowwise | Self::Vocab | Self::Experts
        )
    }
}
