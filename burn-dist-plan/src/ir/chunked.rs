//! Operations in chunks.

use std::sync::Arc;

use super::op::Op;
use super::step::{LocalStep, Move};
use super::tensor::Slot;
use crate::layout::redistribute::StepKind;
use crate::mesh::{AxisIndex, MeshShape};

/// Operations that are computed in chunks, beside the collective that they wait for or that waits for them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chunked<O> {
    /// The collective, which is done by shifts.
    pub moved: Move,
    /// The axis that it goes along.
    pub axis: AxisIndex,
    /// The mesh with an axis of chunks behind its own. A chunk is what the rank of that coordinate has or makes.
    pub chunks: Arc<MeshShape>,
    /// The operations in their order. Layouts of what is cut are split over the axis of chunks too.
    pub steps: Vec<LocalStep<O>>,
    /// True if what is gathered is needed as a whole besides.
    pub keeps_whole: bool,
}

impl<O: Op> Chunked<O> {
    /// Returns whether chunks are gathered, rather than scattered.
    pub(crate) fn gathers(&self) -> bool {
        matches!(self.moved.step.kind, StepKind::AllGather { .. })
    }

    /// Returns the slots that it reads.
    pub(crate) fn reads(&self) -> Vec<Slot> {
        let made: Vec<Slot> = self.made().collect();
        let inputs = self.steps.iter().flat_map(|step| step.op.inputs());
        let mut reads: Vec<Slot> = inputs.map(|input| input.id).collect();
        if self.gathers() {
            reads.retain(|slot| *slot != self.moved.to);
            reads.push(self.moved.from);
        }
        reads.retain(|slot| *slot != Slot::MAX && !made.contains(slot));
        reads
    }

    /// Returns the slots that it makes.
    pub(crate) fn writes(&self) -> Vec<Slot> {
        match self.gathers() {
            true => self
                .made()
                .chain(self.keeps_whole.then_some(self.moved.to))
                .collect(),
            false => vec![self.moved.to],
        }
    }

    /// Returns what its operations make.
    pub(crate) fn made(&self) -> impl Iterator<Item = Slot> {
        let made = self.steps.iter().flat_map(|step| step.op.outputs());
        made.map(|out| out.id)
    }

    /// Returns the operation that it stands for: the last one.
    pub(crate) fn last(&self) -> &LocalStep<O> {
        self.steps.last().expect("something is computed in chunks")
    }
}
