//! The common program of a window: the steps of all ranks, over slots that they share.

use std::sync::Arc;

use serde::Serialize;

use super::chunked::Chunked;
use super::op::{Op, Side};
use super::role::Role;
use super::step::{LocalStep, Move, Transfer};
use super::tensor::Slot;
use super::values::{OpIndex, SlotInfo, Value};
use super::window::{Origin, ValueIndex};
use crate::layout::Layout;

/// One step of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProgramStep<O> {
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
    /// Operations in chunks, beside a collective.
    Chunked(Box<Chunked<O>>),
    /// Starts collectives together.
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
    /// Sends a slot to the ranks of another coordinate, without waiting for them.
    Send(Transfer),
    /// Waits for a slot that another coordinate sends.
    Receive(Transfer),
}

impl<O: Op> ProgramStep<O> {
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

    /// Lets `edit` change the slots that it reads and those that it makes; none of a step that a later pass makes.
    pub(crate) fn each_slot(&mut self, mut edit: impl FnMut(Side, &mut Slot)) {
        match self {
            Self::Local(step) => step.op.rewire(|side, wire| {
                if wire.id != Slot::MAX {
                    edit(side, &mut wire.id);
                }
            }),
            Self::Move(step) => {
                edit(Side::Input, &mut step.from);
                edit(Side::Output, &mut step.to);
            }
            Self::Store { slot, .. } | Self::Read { slot, .. } => edit(Side::Input, slot),
            Self::Load { slot, .. } | Self::Upload { slot, .. } | Self::Random { slot, .. } => {
                edit(Side::Output, slot);
            }
            Self::Launch { .. }
            | Self::Finish { .. }
            | Self::Chunked(_)
            | Self::Send(_)
            | Self::Receive(_) => {}
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

    /// Returns whether it may shift blocks between ranks.
    pub(crate) fn may_shift(&self) -> bool {
        match self {
            Self::Local(step) => step.op.traits().shifts,
            Self::Chunked(_) => true,
            _ => false,
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

/// A value that outlives its window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outlives {
    pub value: ValueIndex,
    pub layout: Arc<Layout>,
    pub role: Role,
    /// What it is made of, if it is placed for no other reason.
    pub origin: Option<Origin>,
}

/// Gradients of parameters that were terms of a sum over ranks while something else was done with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accumulated {
    /// Sums of two of them, reduced afterwards.
    pub added: u64,
    /// Those that lived on beyond a window.
    pub kept: u64,
}

/// The common program of a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program<O> {
    pub steps: Vec<ProgramStep<O>>,
    pub slots: Vec<SlotInfo>,
    pub values: Arc<[Value]>,
    pub outputs: Vec<Outlives>,
    pub reads: Vec<(Slot, ValueIndex)>,
    pub num_streams: u64,
    pub accumulated: Accumulated,
    /// The most rows of data that an operation takes; 0 if none takes any.
    pub rows: usize,
    /// The most rows of data that has fewer of them than there are parts, and is used row by row; 0 if there is none.
    pub few_rows: usize,
    /// The coordinate along the pipeline axis of the ranks that run it.
    pub coord: u32,
}

impl<O> Default for Program<O> {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            slots: Vec::new(),
            values: [].into(),
            outputs: Vec::new(),
            reads: Vec::new(),
            num_streams: 0,
            accumulated: Accumulated::default(),
            rows: 0,
            few_rows: 0,
            coord: 0,
        }
    }
}

impl<O> Program<O> {
    /// Returns the same program with other steps, for the ranks of one coordinate.
    pub(crate) fn of_coord(&self, coord: u32, steps: Vec<ProgramStep<O>>) -> Self {
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
                ProgramStep::Launch { group, moves } => Some((*group, moves)),
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
