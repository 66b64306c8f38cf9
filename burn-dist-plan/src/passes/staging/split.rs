//! A program that is split by coordinates.

use std::ops::Range;

use super::repeat::Repeated;
use crate::ir::{Op, Program, ProgramStep, Transfer};

/// A step of a coordinate.
pub(super) enum Planned {
    Step(u32),
    Send(Transfer),
    Receive(Transfer),
}

/// A program that is split by the coordinates of the pipeline axis. Each coordinate's steps are written down when they
/// are wanted: those of many microbatches need not all be there at once.
pub(crate) struct Split {
    pub(super) repeated: Option<Repeated>,
    pub(super) coords: Vec<Vec<Planned>>,
}

impl Split {
    /// Returns the coordinates.
    pub(crate) fn coords(&self) -> Range<u32> {
        0..self.coords.len() as u32
    }

    /// Returns the program of a coordinate, of the one that was split.
    pub(crate) fn program<O: Op>(&self, whole: &Program<O>, coord: u32) -> Program<O> {
        let step = |planned: &Planned| match planned {
            Planned::Step(index) => match &self.repeated {
                Some(repeated) => repeated.step(whole, *index as usize),
                None => whole.steps[*index as usize].clone(),
            },
            Planned::Send(transfer) => ProgramStep::Send(transfer.clone()),
            Planned::Receive(transfer) => ProgramStep::Receive(transfer.clone()),
        };
        let steps = self.coords[coord as usize].iter().map(step).collect();
        whole.of_coord(coord, steps)
    }
}
