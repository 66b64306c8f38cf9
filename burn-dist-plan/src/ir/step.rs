//! Steps of all ranks, over slots that they share.

use std::sync::Arc;

use super::op::Op;
use super::tensor::Slot;
use super::values::OpIndex;
use crate::layout::Layout;
use crate::layout::redistribute::Step;
use crate::mesh::{AxisIndex, Split};
use crate::rule::{Assignment, OpRule};

/// A slot on its way between two coordinates of the pipeline axis: each rank of one sends its part to the rank of the
/// other that has the same coordinates else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfer {
    pub slot: Slot,
    pub from: u32,
    pub to: u32,
    pub axis: AxisIndex,
    pub path: Option<Arc<str>>,
}

/// How a collective lies on nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnNodes {
    /// Inside nodes, or with one rank on each.
    #[default]
    OneLevel,
    /// One call over several nodes, for this reason.
    Flat(&'static str),
    /// One of the stages that do together what the step says.
    Stage { split: Split, index: u8 },
}

/// One step of a redistribution, or one stage of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Move {
    pub step: Arc<Step>,
    pub on_nodes: OnNodes,
    pub from: Slot,
    pub to: Slot,
    pub reason: Reason,
    pub path: Option<Arc<str>>,
    /// The operation it is made for.
    pub at: OpIndex,
}

/// An operation to be localised for every rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LocalStep<O> {
    /// Tensor ids are slots, shapes global.
    pub op: O,
    pub rule: Arc<OpRule>,
    pub assignment: Option<Arc<Assignment>>,
    pub inputs: Box<[Arc<Layout>]>,
    pub outputs: Box<[Arc<Layout>]>,
    pub path: Option<Arc<str>>,
    /// The operation of the window that it is.
    pub of: OpIndex,
    /// The operation during whose planning it was placed: where it stands in the program.
    pub at: OpIndex,
}

impl<O: Op> LocalStep<O> {
    /// Returns the axes over which input `position` is needed in pieces: along them, each rank looks at what falls into
    /// its part of the result.
    pub(crate) fn in_pieces(&self, position: usize) -> Vec<AxisIndex> {
        let (OpRule::Factors(rule), Some(assignment)) = (self.rule.as_ref(), &self.assignment)
        else {
            return Vec::new();
        };
        let traits = self.op.traits();
        if traits.joins.is_none() && !traits.assigns {
            return Vec::new();
        }
        let input = &rule.inputs[position].dims;
        let of_output = rule.outputs[0].dims.iter().flatten();
        of_output
            .filter(|factor| !input.contains(&Some(**factor)))
            .flat_map(|factor| assignment.factors[*factor as usize].axes())
            .collect()
    }
}

/// Why a redistribution is there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reason {
    /// An operation needs the operand in this layout.
    Operand(&'static str),
    /// A partial value outlives its window.
    Survivor,
    /// The user asked for it, or a parameter's `input` / `output` does.
    Constraint(&'static str),
    /// The host reads it.
    Read,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operand(kind) => write!(f, "operand of {kind}"),
            Self::Survivor => write!(f, "partial value outlives its window"),
            Self::Constraint(what) => write!(f, "{what}"),
            Self::Read => write!(f, "read by the host"),
        }
    }
}
