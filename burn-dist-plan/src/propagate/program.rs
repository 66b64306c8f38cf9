//! The common program of a window: the steps of all ranks, over slots that they share.

use std::sync::Arc;

use super::values::{OpIndex, SlotInfo, Value};
use crate::async_tp::Chunked;
use crate::explain::{Accumulated, Runs};
use crate::facts::Role;
use crate::layout::Layout;
use crate::layout::redistribute::Step;
use crate::mesh::{AxisIndex, Split};
use crate::op::Op;
use crate::rule::{Assignment, OpRule};
use crate::task::Slot;
use crate::window::{Origin, ValueIndex};

/// One step of all ranks.
#[derive(Clone, Debug)]
pub(crate) enum Common<O> {
    Load {
        value: ValueIndex,
        slot: Slot,
    },
    Upload {
        value: ValueIndex,
        slot: Slot,
    },
    Random {
        op: OpIndex,
        stream: u64,
        slot: Slot,
    },
    Local(Box<LocalStep<O>>),
    Move(Move),
    /// Operations in chunks, beside a collective (made by `async_tp`).
    Chunked(Box<Chunked<O>>),
    /// Starts collectives together (made by `schedule`).
    Launch {
        group: u32,
        moves: Vec<Move>,
    },
    /// Waits for collectives of a launch.
    Finish {
        group: u32,
        to: Vec<Slot>,
    },
    Store {
        slot: Slot,
        value: ValueIndex,
    },
    Read {
        slot: Slot,
        read: u32,
    },
    /// Sends a slot to the ranks of another coordinate, without waiting for them (made by `staging`).
    Send(Transfer),
    /// Waits for a slot that another coordinate sends.
    Receive(Transfer),
}

impl<O: Op> Common<O> {
    /// Returns the slots that it reads.
    pub(crate) fn reads(&self) -> Vec<Slot> {
        match self {
            Self::Local(step) => {
                let inputs = step.op.inputs().map(|tensor| tensor.id);
                inputs.filter(|slot| *slot != Slot::MAX).collect()
            }
            Self::Move(step) => vec![step.from],
            Self::Chunked(step) => step.reads(),
            Self::Store { slot, .. } | Self::Read { slot, .. } => vec![*slot],
            Self::Send(transfer) => vec![transfer.slot],
            _ => Vec::new(),
        }
    }

    /// Returns the slots that it makes.
    pub(crate) fn writes(&self) -> Vec<Slot> {
        match self {
            Self::Local(step) => step.op.outputs().map(|tensor| tensor.id).collect(),
            Self::Move(step) => vec![step.to],
            Self::Chunked(step) => step.writes(),
            Self::Load { slot, .. } | Self::Upload { slot, .. } | Self::Random { slot, .. } => {
                vec![*slot]
            }
            Self::Receive(transfer) => vec![transfer.slot],
            _ => Vec::new(),
        }
    }

    /// Returns the operation at which it stands in the program.
    pub(crate) fn at(&self) -> Option<OpIndex> {
        match self {
            Self::Local(step) => Some(step.at),
            Self::Move(step) => Some(step.at),
            Self::Chunked(step) => Some(step.last().at),
            _ => None,
        }
    }

    /// Returns the operation that says on which stage it runs: the one that it is, or that it is made for.
    pub(crate) fn stage_of(&self) -> Option<OpIndex> {
        match self {
            Self::Local(step) => Some(step.of),
            Self::Chunked(step) => Some(step.last().of),
            _ => self.at(),
        }
    }

    /// Returns the module that it works for.
    pub(crate) fn path(&self) -> Option<&Arc<str>> {
        match self {
            Self::Local(step) => step.path.as_ref(),
            Self::Move(step) => step.path.as_ref(),
            Self::Chunked(step) => step.moved.path.as_ref(),
            Self::Send(transfer) | Self::Receive(transfer) => transfer.path.as_ref(),
            _ => None,
        }
    }
}

/// A slot on its way between two coordinates of the pipeline axis: each rank of one sends its part to the rank of the
/// other that has the same coordinates else.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub slot: Slot,
    pub from: u32,
    pub to: u32,
    pub axis: AxisIndex,
    pub path: Option<Arc<str>>,
}

/// How a collective lies on nodes; found by `hierarchy`.
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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

/// A value that outlives its window.
#[derive(Clone, Debug)]
pub(crate) struct Outlives {
    pub value: ValueIndex,
    pub layout: Arc<Layout>,
    pub role: Role,
    /// What it is made of, if it is placed for no other reason.
    pub origin: Option<Origin>,
}

/// The common program of a window.
#[derive(Clone, Debug)]
pub(crate) struct Program<O> {
    pub steps: Vec<Common<O>>,
    pub slots: Vec<SlotInfo>,
    pub values: Arc<[Value]>,
    pub outputs: Vec<Outlives>,
    pub reads: Vec<(Slot, ValueIndex)>,
    pub num_streams: u64,
    pub accumulated: Accumulated,
    pub runs: Runs,
    /// The most rows of data that an operation takes; 0 if none takes any.
    pub rows: usize,
    /// The most rows of data that has fewer of them than there are parts, and is used row by row; 0 if there is none.
    pub few_rows: usize,
    /// The coordinate along the pipeline axis of the ranks that run it.
    pub coord: u32,
}

impl<O> Program<O> {
    /// Returns the same program with other steps, for the ranks of one coordinate.
    pub(crate) fn of_coord(&self, coord: u32, steps: Vec<Common<O>>) -> Self {
        Self {
            steps,
            coord,
            slots: self.slots.clone(),
            values: self.values.clone(),
            outputs: self.outputs.clone(),
            reads: self.reads.clone(),
            ..*self
        }
    }

    /// Returns the collectives that are launched together, with the number of their launch.
    pub(crate) fn launched(&self) -> impl Iterator<Item = (u32, &Move)> {
        self.steps
            .iter()
            .filter_map(|step| match step {
                Common::Launch { group, moves } => Some((*group, moves)),
                _ => None,
            })
            .flat_map(|(group, moves)| moves.iter().map(move |step| (group, step)))
    }
}

impl<O: Op> Program<O> {
    /// Returns for each slot the step that makes it.
    pub(crate) fn producers(&self) -> Vec<usize> {
        let mut producer = vec![0; self.slots.len()];
        for (index, step) in self.steps.iter().enumerate() {
            for slot in step.writes() {
                producer[slot as usize] = index;
            }
        }
        producer
    }
}
