//! The report of passes.

use super::async_tp::Overlap;
use super::checkpoint::Recomputed;
use super::float8::Float8Layer;
use super::redundancy::Redundancy;
use super::regions::Fused;
use crate::memory::MemoryPlan;

/// A report on a window: each pass fills in the fields about what it has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Linear layers whose units ask for float8.
    pub float8: Vec<Float8Layer>,
    /// Why the operation that was asked about is split as it is.
    pub why: Option<String>,
    pub recomputed: Recomputed,
    /// The work of the window; that of all its microbatches, once they are repeated.
    pub redundancy: Option<Redundancy>,
    /// The schedule of its microbatches, for people.
    pub scheduled: Option<String>,
    /// Collectives along tensor-parallel axes, and whether products run beside them.
    pub overlaps: Vec<Overlap>,
    /// Elementwise work as few kernels, if it is.
    pub fused: Option<Fused>,
    /// Memory of each rank.
    pub memory: Vec<MemoryPlan>,
}

impl Report {
    /// Adds what a later pass tells, or the same one of the next stage.
    pub(crate) fn add(&mut self, other: Self) {
        self.float8.extend(other.float8);
        self.why = other.why.or(self.why.take());
        self.recomputed += other.recomputed;
        self.redundancy = other.redundancy.or(self.redundancy.take());
        self.scheduled = other.scheduled.or(self.scheduled.take());
        self.overlaps.extend(other.overlaps);
        self.fused = other.fused.or(self.fused);
        self.memory.extend(other.memory);
    }
}
