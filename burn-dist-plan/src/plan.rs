//! The plan of a window: what the planner hands on.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{Accumulated, CollectiveRecord, Output, RankPlan, ReadPlan, op_bytes};
use crate::layout::Policy;
use crate::memory::MemoryPlan;
use crate::mesh::Rank;
use crate::passes::async_tp::Overlap;
use crate::passes::checkpoint::Recomputed;
use crate::passes::float8::Float8Layer;
use crate::passes::redundancy::Redundancy;
use crate::passes::regions::Fused;

/// A planned window.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<O> {
    /// The ranks that are planned for.
    pub numbers: Vec<Rank>,
    /// The plan of each.
    pub ranks: Vec<Arc<RankPlan<O>>>,
    /// What is left behind.
    pub outputs: Vec<Output>,
    /// How each read is put together.
    pub reads: Vec<ReadPlan>,
    /// Operations recorded, by family and kind.
    pub operations: BTreeMap<(&'static str, &'static str), u64>,
    /// Number of random operations.
    pub num_streams: u64,
    /// Every collective, in order.
    pub collectives: Vec<CollectiveRecord>,
    /// Collectives along tensor-parallel axes, and whether products run beside them.
    pub overlaps: Vec<Overlap>,
    /// Planned memory per local rank.
    pub memory: Vec<MemoryPlan>,
    /// Gradients that were added or kept before they were reduced.
    pub accumulated: Accumulated,
    /// The stages of its pipeline and the schedule of their microbatches, for people.
    pub scheduled: Option<String>,
    /// What is made again in the backward.
    pub recomputed: Recomputed,
    /// Linear layers whose units ask for float8.
    pub float8: Vec<Float8Layer>,
    /// The policies of its parameters.
    pub policies: Vec<Arc<Policy>>,
    /// Elementwise work as few kernels, if it is.
    pub fused: Option<Fused>,
    /// Work that ranks repeat.
    pub redundancy: Redundancy,
}

impl<O> Plan<O> {
    /// Returns about how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        // Collectives with the runs of their pieces, and records with their texts, counted at a typical size.
        const COLLECTIVE_BYTES: usize = 1024;
        let tasks: usize = self.ranks.iter().map(|rank| rank.tasks.len()).sum();
        let collectives = self.collectives.len() * (self.ranks.len() + 1);
        tasks * op_bytes::<O>() + collectives * COLLECTIVE_BYTES
    }
}
