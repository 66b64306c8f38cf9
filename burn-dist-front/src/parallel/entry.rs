//! Entries of a plan.

use super::pattern::Pattern;
use super::{LayoutText, Style};
use crate::layout::LayoutError;
use crate::plan::UnitPolicy;
use crate::plan::clock::ModuleCosts;
use std::sync::Arc;

/// One request of a plan, for the parameters that a path or a pattern names.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) target: Target,
    pub(super) action: Action,
}

/// Which modules and parameters an entry is for.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// The field that an attribute stands on. There may be nothing in it, since `Option`s are empty and enums have
    /// other variants; `vacant` shows that it is so just now.
    Field { path: Vec<String>, vacant: bool },
    /// Whatever a pattern names: a person wrote it, and meant something by it.
    Pattern {
        text: String,
        /// The pattern, or why it cannot be read.
        pattern: Result<Pattern, String>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    Style(StyleEntry),
    Skip,
    Input(Result<LayoutText, LayoutError>),
    Output(Result<LayoutText, LayoutError>),
    Unit(UnitPolicy),
    Divisible { count: usize, axis: String },
    Stage(StageMark),
}

#[derive(Clone, Debug)]
pub(super) struct StyleEntry {
    pub(super) style: Style,
    /// The axes, if they were named: one, but for experts.
    pub(super) axes: Option<Vec<String>>,
    /// A count the axis has to divide, and what is counted.
    pub(super) heads: Option<(usize, String)>,
}

impl Entry {
    /// The method of [`Plan`](super::Plan), or the attribute, that adds such an entry.
    pub(super) fn verb(&self) -> String {
        match &self.action {
            Action::Style(entry) => entry.style.to_string(),
            Action::Skip => "skip".into(),
            Action::Input(_) => "input".into(),
            Action::Output(_) => "output".into(),
            Action::Unit(policy) => self.unit_verb(policy).into(),
            Action::Divisible { .. } => "require_divisible".into(),
            Action::Stage(mark) => self.stage_verb(mark).into(),
        }
    }

    /// Returns whether a person wrote it as an entry of a plan.
    pub(super) fn is_written(&self) -> bool {
        matches!(self.target, Target::Pattern { .. })
    }

    /// The pattern, or the path of the field.
    pub(super) fn text(&self) -> String {
        match &self.target {
            Target::Field { path, .. } => path.join("."),
            Target::Pattern { text, .. } => text.clone(),
        }
    }

    fn unit_verb(&self, policy: &UnitPolicy) -> &'static str {
        match self.target {
            _ if *policy == UnitPolicy::new() => "unit",
            Target::Pattern { .. } => "unit_policy",
            Target::Field { .. } if policy.checkpoint.is_some() => "checkpoint",
            Target::Field { .. } if policy.precision.is_some() || policy.float8.is_some() => {
                "precision"
            }
            Target::Field { .. } if policy.context.is_some() => "context",
            Target::Field { .. } => "strategy",
        }
    }

    fn stage_verb(&self, mark: &StageMark) -> &'static str {
        match mark {
            StageMark::First => "first",
            StageMark::Last => "last",
            StageMark::At(_) => "stage",
            StageMark::Blocks(_) if !self.is_written() => "stages",
            StageMark::Blocks(Split::Even) => "stages",
            StageMark::Blocks(Split::Weights(_)) => "stage_weights",
            StageMark::Costs(_) => "stage_costs",
            StageMark::Blocks(Split::Table(_)) => "stage_table",
        }
    }

    /// Where the entry comes from, for messages.
    pub(super) fn place(&self) -> String {
        match self.is_written() {
            true => format!("{}(\"{}\")", self.verb(), self.text()),
            false => format!("{} on {}", self.verb(), self.text()),
        }
    }
}

/// The stage that parameters belong to.
#[derive(Clone, Debug)]
pub(super) enum StageMark {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// This one.
    At(u32),
    /// The blocks of a list, one run of them after the other.
    Blocks(Split),
    /// The blocks of a list, by the costs of modules, those included that stages have beside the list.
    Costs(Arc<ModuleCosts>),
}

/// Which blocks of a list each stage has.
#[derive(Clone, Debug)]
pub(super) enum Split {
    /// Equally many; the first stages have one more where that cannot be.
    Even,
    /// By the cost of each block: the costliest stage costs as little as can be.
    Weights(Vec<f64>),
    /// The stage of each block.
    Table(Vec<u32>),
}
