//! Entries of a plan, and how a person writes them.

use super::pattern::Pattern;
use super::{LayoutText, ParallelError, ParamSpec, Style};
use super::{resolve, walk};
use crate::mesh::MeshShape;
use crate::plan::{Precision, ShardStrategy};
use burn_core::module::Module;
use burn_core::tensor::backend::Backend;

/// The tensor-parallel axis used where none is named. A mesh may lack it: its styles then split nothing.
pub(super) const DEFAULT_AXIS: &str = "tp";

/// What is split over which axis, by path.
///
/// A pattern is a dotted path; in a segment `*` stands for any characters, and a segment `**` for any number of
/// segments. A pattern names a module, a parameter, or a list of them (then it stands for each element); `""` names the
/// model itself. Later entries override earlier ones for the parameters both name.
///
/// ```
/// use burn::backend::Flex;
/// use burn::nn::LinearConfig;
/// use burn_dist::mesh::MeshShape;
/// use burn_dist::parallel::Plan;
///
/// let up = LinearConfig::new(16, 64).init::<Flex>(&Default::default());
/// let down = LinearConfig::new(64, 16).init::<Flex>(&Default::default());
/// let mesh = MeshShape::parse("fsdp=2,tp=2")?;
///
/// let specs = Plan::new().colwise("0").rowwise("1").unit("*").resolve(&(up, down), &mesh)?;
/// let text: Vec<String> = specs.iter().map(|spec| spec.to_text(&mesh)).collect();
/// assert_eq!(text[0], "path=0.weight;style=colwise;role=weight;layout=[-, {tp}];unit=0;rest=yes");
/// assert_eq!(text[1], "path=0.bias;style=colwise;role=bias;layout=[{tp}];unit=0;rest=yes");
/// assert_eq!(text[2], "path=1.weight;style=rowwise;role=weight;layout=[{tp}, -];unit=1;rest=yes");
/// assert_eq!(text[3], "path=1.bias;style=rowwise;role=bias;layout=[-];unit=1;rest=yes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) entries: Vec<Entry>,
    /// The axis of the styles added from here on.
    axis: Option<String>,
    pub(super) replicate_indivisible: bool,
}

/// One thing said about the parameters a pattern names.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The pattern as written.
    pub(super) text: String,
    /// The pattern, or why it cannot be read.
    pub(super) pattern: Result<Pattern, String>,
    pub(super) action: Action,
    pub(super) origin: Origin,
}

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// An attribute: it may name nothing, since `Option`s are empty and enums have other variants; `vacant` says that
    /// it is so just now.
    Derived { vacant: bool },
    /// A person, who meant something by it.
    Written,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Style(StyleEntry),
    Skip,
    Input(LayoutText),
    Output(LayoutText),
    Unit,
    Checkpoint,
    Strategy(ShardStrategy),
    Precision(Precision),
    Divisible { count: usize, axis: String },
}

#[derive(Clone, Debug)]
pub(super) struct StyleEntry {
    pub(super) style: Style,
    /// The axis, if it was named.
    pub(super) axis: Option<String>,
    /// A count the axis has to divide, and what is counted.
    pub(super) heads: Option<(usize, String)>,
}

impl Entry {
    /// The method of [`Plan`] that adds such an entry.
    pub(super) fn verb(&self) -> String {
        match &self.action {
            Action::Style(entry) => entry.style.to_string(),
            Action::Skip => "skip".into(),
            Action::Input(_) => "input".into(),
            Action::Output(_) => "output".into(),
            Action::Unit => "unit".into(),
            Action::Checkpoint => "checkpoint".into(),
            Action::Strategy(_) => "strategy".into(),
            Action::Precision(_) => "precision".into(),
            Action::Divisible { .. } => "require_divisible".into(),
        }
    }

    /// Where the entry comes from, for messages.
    pub(super) fn place(&self) -> String {
        match self.origin {
            Origin::Written => format!("{}(\"{}\")", self.verb(), self.text),
            Origin::Derived { .. } => format!("{} on {}", self.verb(), self.text),
        }
    }
}

impl Plan {
    /// Returns the plan that says nothing: every parameter is whole, and rests over the FSDP axes.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn from_entries(entries: Vec<Entry>) -> Self {
        Self {
            entries,
            ..Self::default()
        }
    }

    /// Splits output features: weights `[-, {tp}]`, biases `[{tp}]`.
    pub fn colwise(self, pattern: &str) -> Self {
        self.style(Style::Colwise, pattern)
    }

    /// Splits input features: weights `[{tp}, -]`, biases whole.
    pub fn rowwise(self, pattern: &str) -> Self {
        self.style(Style::Rowwise, pattern)
    }

    /// Splits the vocabulary: the rows of an `Embedding`, the columns of a `Linear`.
    pub fn vocab(self, pattern: &str) -> Self {
        self.style(Style::Vocab, pattern)
    }

    /// Lets a module, or everything in it, work on parts of the sequence; parameters are whole.
    pub fn sequence(self, pattern: &str) -> Self {
        self.style(Style::Sequence, pattern)
    }

    /// Keeps a module, or everything in it, whole over the tensor-parallel axes.
    pub fn replicate(self, pattern: &str) -> Self {
        self.style(Style::Replicate, pattern)
    }

    /// Keeps a module, or everything in it, whole on every rank: it does not rest in pieces either.
    pub fn skip(self, pattern: &str) -> Self {
        self.with(pattern, Action::Skip)
    }

    /// Names the axis of the styles added after this; the mesh has to have it. Without, it is `tp`, which a mesh may
    /// lack.
    pub fn axis(mut self, axis: &str) -> Self {
        self.axis = Some(axis.into());
        self
    }

    /// Gives the layout in which a module takes its input. The mesh has to have its axes, except for `tp`, which is
    /// left out where it is missing.
    pub fn input(self, pattern: &str, layout: &str) -> Self {
        self.with(pattern, Action::Input(LayoutText::new(layout)))
    }

    /// Gives the layout in which a module gives its output; axes as in [`Plan::input`].
    pub fn output(self, pattern: &str, layout: &str) -> Self {
        self.with(pattern, Action::Output(LayoutText::new(layout)))
    }

    /// Marks a module as an FSDP unit, gathered and freed as a whole; of a list, each element. The nearest one counts.
    pub fn unit(self, pattern: &str) -> Self {
        self.with(pattern, Action::Unit)
    }

    /// Marks a module as a unit, as [`Plan::unit`] does, whose activations are made again in the backward whatever the
    /// mesh's [`Checkpoint`](crate::Checkpoint) policy; units inside it are checkpointed likewise, each by itself.
    pub fn checkpoint(self, pattern: &str) -> Self {
        self.with(pattern, Action::Checkpoint)
    }

    /// Marks a module as a unit, as [`Plan::unit`] does, with which shard axes do what `strategy` says, whatever the
    /// mesh's strategies; the nearest one counts for units inside it too. On a mesh without shard axes it changes
    /// nothing, and never a value.
    ///
    /// [`ShardStrategy::Replicate`] keeps its parameters whole on every rank, with all-reduced gradients (DDP), as
    /// suits small modules; unlike [`Plan::skip`], it leaves them split over tensor-parallel axes.
    pub fn strategy(self, pattern: &str, strategy: ShardStrategy) -> Self {
        self.with(pattern, Action::Strategy(strategy))
    }

    /// Marks a module as a unit, as [`Plan::unit`] does, that computes in `precision`, whatever the mesh's; the nearest
    /// one counts for units inside it too.
    pub fn precision(self, pattern: &str, precision: Precision) -> Self {
        self.with(pattern, Action::Precision(precision))
    }

    /// Requires that the size of `axis` divides `count`, such as a number of heads, where the pattern's modules are
    /// split over it.
    ///
    /// The mesh has to have the axis, unless it is `tp`.
    pub fn require_divisible(self, pattern: &str, count: usize, axis: &str) -> Self {
        self.with(
            pattern,
            Action::Divisible {
                count,
                axis: axis.into(),
            },
        )
    }

    /// Replicates what would be split unevenly against [`Plan::require_divisible`] or `heads`, instead of failing.
    pub fn replicate_indivisible(mut self) -> Self {
        self.replicate_indivisible = true;
        self
    }

    /// Returns one spec per float parameter, in the order of the module's walk. Nothing is initialised, moved or
    /// changed.
    ///
    /// Where a lazy parameter has mappers (`LinearLayout::Col`), the sizes in its layout are those Burn states before
    /// they run.
    ///
    /// # Errors
    /// [`ParallelError::UnknownPath`] for a pattern that names nothing, [`ParallelError::UnknownAxis`] for a named axis
    /// the mesh lacks, [`ParallelError::Indivisible`], [`ParallelError::DoesNotFit`] and
    /// [`ParallelError::NoParameters`] for styles that cannot be, [`ParallelError::ImpossiblePrecision`], and
    /// [`ParallelError::MalformedPattern`] and [`ParallelError::MalformedLayout`] for text that cannot be read.
    pub fn resolve<B: Backend, M: Module<B>>(
        &self,
        module: &M,
        mesh: &impl AsRef<MeshShape>,
    ) -> Result<Vec<ParamSpec>, ParallelError> {
        resolve::resolve(self, &walk::parameters(module), mesh.as_ref())
    }

    fn style(self, style: Style, pattern: &str) -> Self {
        let axis = self.axis.clone();
        self.with(
            pattern,
            Action::Style(StyleEntry {
                style,
                axis,
                heads: None,
            }),
        )
    }

    fn with(mut self, pattern: &str, action: Action) -> Self {
        self.entries.push(Entry {
            text: pattern.into(),
            pattern: Pattern::parse(pattern),
            action,
            origin: Origin::Written,
        });
        self
    }
}
