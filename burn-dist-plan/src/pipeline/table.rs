//! The order of actions of every rank, and its text form.

use std::fmt;

use super::Action;
use super::line::write_line;

/// Which rank has which stages, if there are several per rank.
///
/// Text form: `loop`, `v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Stage s is on rank s mod p: after the last rank follows the first (arXiv:2104.04473, section 2.2).
    Loop,
    /// Down and up again: after the last rank follows the last (arXiv:2405.15362).
    V,
}

impl Placement {
    /// Returns the rank of a stage, of so many ranks.
    pub fn rank(self, stage: u32, ranks: u32) -> u32 {
        let (chunk, place) = (stage / ranks, stage % ranks);
        match self {
            Self::V if chunk % 2 == 1 => ranks - 1 - place,
            Self::V | Self::Loop => place,
        }
    }

    /// Returns the stage that is a rank's `chunk`-th.
    pub fn stage(self, rank: u32, chunk: u32, ranks: u32) -> u32 {
        // Both placements are their own inverse within a chunk.
        chunk * ranks + self.rank(chunk * ranks + rank, ranks)
    }
}

burn_dist_mesh::texts!(
    Placement,
    "is not a placement: use loop or v",
    Loop = "loop",
    V = "v",
);

/// The order in which each rank does its actions. A rank does one at a time, each as soon as what it needs is there.
///
/// The text form is a header and a line per rank, so that rank r is on line r + 2:
///
/// ```text
/// schedule ranks=2 chunks=1 placement=loop microbatches=2
/// F0.0 F0.1 BW0.0 BW0.1
/// F1.0 BW1.0 F1.1 BW1.1
/// ```
///
/// Reading a text validates it. A schedule that is put together by hand is data of which [`validate`](Self::validate)
/// says whether it can run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The ranks of the pipeline.
    pub ranks: u32,
    /// The stages of a rank.
    pub chunks: u32,
    /// Which rank has which stages.
    pub placement: Placement,
    /// The microbatches of a step.
    pub microbatches: u32,
    /// The actions of each rank, in order.
    pub order: Vec<Vec<Action>>,
}

impl Schedule {
    /// Returns the number of stages of the model.
    pub fn stages(&self) -> u32 {
        self.ranks * self.chunks
    }

    /// Returns the rank of a stage.
    pub fn rank(&self, stage: u32) -> u32 {
        self.placement.rank(stage, self.ranks)
    }

    /// Returns the schedule without the microbatches from `microbatches` on. What was possible stays so.
    pub(super) fn truncated(mut self, microbatches: u32) -> Self {
        for actions in &mut self.order {
            actions.retain(|action| action.microbatch < microbatches);
        }
        self.microbatches = microbatches;
        self
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "schedule ranks={} chunks={} placement={} microbatches={}",
            self.ranks, self.chunks, self.placement, self.microbatches
        )?;
        self.order
            .iter()
            .try_for_each(|actions| write_line(f, actions))
    }
}
