//! What steps cost, and the bytes that they move.

use super::{Step, StepKind};
use crate::layout::{Layout, chunk};
use burn_dist_mesh::{MeshShape, Rank};

/// What starting a collective costs, in bytes that could have been moved instead.
const LATENCY_BYTES: f64 = 512.0;
/// What a local step costs: next to nothing, but fewer are better.
const LOCAL_BYTES: f64 = 1e-3;

impl Step {
    /// Returns an estimate of the cost in bytes received per rank, plus 512 for starting a collective; local steps cost
    /// next to nothing.
    ///
    /// With n the bytes of the largest block involved and k the size of the group: all_gather and reduce_scatter
    /// (k-1)/k·n of the larger side, all_reduce 2(k-1)/k·n, all_to_all (k-1)/k·n.
    pub fn cost(&self, mesh: &MeshShape, elem_bytes: usize) -> f64 {
        step_cost(mesh, &self.kind, &self.from, &self.to, elem_bytes)
    }

    /// Returns the exact number of bytes that a rank receives from others in this step.
    ///
    /// all_gather: the others' pieces. all_to_all: the others' parts of the own new block. reduce_scatter: every other
    /// member's term of the own chunk. all_reduce: a reduce_scatter of the block cut into `ceil(n / k)` chunks, then an
    /// all_gather of the chunks. Summed over the group, rings and trees move as much.
    pub fn step_bytes(&self, mesh: &MeshShape, rank: Rank, elem_bytes: usize) -> u64 {
        let before = self.from.local_numel(mesh, rank);
        let after = self.to.local_numel(mesh, rank);
        let group = mesh.group_size(self.kind.axes());
        let elements = match &self.kind {
            StepKind::AllGather { .. } => after - before,
            StepKind::ReduceScatter { .. } => (group - 1) * after,
            StepKind::AllReduce { axes, .. } => {
                let own = chunk(0..before, group, mesh.group_index(rank, axes)).len();
                (group - 1) * own + (before - own)
            }
            StepKind::AllToAll {
                from: (dim, factor),
                ..
            } => {
                let full = self.to.factor_range(mesh, rank, *dim, *factor).len();
                let own = self.from.factor_range(mesh, rank, *dim, *factor).len();
                // The new block holds this factor whole; all but the own piece of it comes from others.
                after.checked_div(full).unwrap_or(0) * (full - own)
            }
            StepKind::Slice { .. } | StepKind::ToPartial { .. } | StepKind::Refactor => 0,
        };
        (elements * elem_bytes) as u64
    }
}

pub(super) fn step_cost(
    mesh: &MeshShape,
    kind: &StepKind,
    from: &Layout,
    to: &Layout,
    elem_bytes: usize,
) -> f64 {
    let k = mesh.group_size(kind.axes()) as f64;
    let bytes = |layout: &Layout| (layout.local_numel_max(mesh) * elem_bytes) as f64;
    let share = (k - 1.0) / k;
    match kind {
        StepKind::AllGather { .. } => LATENCY_BYTES + share * bytes(to),
        StepKind::ReduceScatter { .. } => LATENCY_BYTES + share * bytes(from),
        StepKind::AllReduce { .. } => LATENCY_BYTES + 2.0 * share * bytes(from),
        StepKind::AllToAll { .. } => LATENCY_BYTES + share * bytes(from).max(bytes(to)),
        StepKind::Slice { .. } | StepKind::ToPartial { .. } | StepKind::Refactor => LOCAL_BYTES,
    }
}
