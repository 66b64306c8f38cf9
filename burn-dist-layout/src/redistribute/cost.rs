//! Costs of steps, and the bytes that they move.

use super::{Step, StepKind};
use crate::cost::{Network, work_ns};
use crate::{Layout, chunk};
use burn_dist_mesh::{MeshShape, Rank};

impl Step {
    /// Returns an estimate of how long the step takes, in nanoseconds.
    ///
    /// With n the bytes of the largest block involved and k the size of the group, a rank receives: all_gather and
    /// reduce_scatter (k-1)/k·n of the larger side, all_reduce 2(k-1)/k·n, all_to_all (k-1)/k·n. A local step writes
    /// what it makes.
    pub fn cost(&self, network: &Network<'_>, elem_bytes: usize) -> f64 {
        let transfer = transfer_ns(network, &self.kind, &self.from, &self.to, elem_bytes);
        let writes = self.kind.effect().collective.is_none() && self.kind != StepKind::Refactor;
        let written = match writes {
            true => self.to.local_numel_max(network.mesh()) * elem_bytes,
            false => 0,
        };
        transfer + work_ns(0.0, written as f64)
    }

    /// Returns the exact number of bytes that a rank receives from others in this step.
    ///
    /// all_gather: the others' pieces. all_to_all: the others' parts of the own new block. reduce_scatter: every other
    /// member's term of the own chunk. all_reduce: a reduce_scatter of the block cut into `ceil(n / k)` chunks, then an
    /// all_gather of the chunks. Summed over the group, rings and trees move as much.
    pub fn step_bytes(&self, mesh: &MeshShape, rank: Rank, elem_bytes: usize) -> u64 {
        let before = self.from.local_numel(mesh, rank);
        let after = self.to.local_numel(mesh, rank);
        let effect = self.kind.effect();
        let group = mesh.group_size(effect.axes);
        let elements = match (effect.joins, effect.reduces, effect.cuts) {
            (Some((dim, factor)), ..) => {
                let of = |layout: &Layout| layout.dims[dim].factors[factor].range(mesh, rank);
                let (full, own) = (of(&self.to).len(), of(&self.from).len());
                // The new block holds this factor whole; all but the own piece of it comes from others.
                after.checked_div(full).unwrap_or(0) * (full - own)
            }
            (None, Some(_), Some(_)) => (group - 1) * after,
            (None, Some(_), None) => {
                let own = chunk(0..before, group, mesh.group_index(rank, effect.axes)).len();
                (group - 1) * own + (before - own)
            }
            (None, None, _) => 0,
        };
        (elements * elem_bytes) as u64
    }

    /// Returns the bytes that the busiest rank receives: the most of [`Self::step_bytes`].
    pub fn bytes_max(&self, mesh: &MeshShape, elem_bytes: usize) -> u64 {
        let bytes = |rank| self.step_bytes(mesh, rank, elem_bytes);
        let sums = self.kind.effect().reduces.is_some();
        // Chunk 0 is the longest at every level, and bytes of sums grow with what a rank has.
        if sums || (self.from.is_even(mesh) && self.to.is_even(mesh)) {
            return bytes(Rank(0));
        }
        let layouts = [&self.from, &self.to].map(Layout::axes_used);
        let mut axes = [self.kind.axes().to_vec(), layouts.concat()].concat();
        axes.sort();
        axes.dedup();
        // Along any other axis all ranks are alike.
        let ranks = mesh.group_of(Rank(0), &axes).into_iter();
        ranks.map(bytes).max().unwrap_or(0)
    }
}

/// Returns how long the transfers of a step take, in nanoseconds: what the search weighs. Of paths that move as much,
/// it takes the one with the fewest steps.
pub(super) fn transfer_ns(
    network: &Network<'_>,
    kind: &StepKind,
    from: &Layout,
    to: &Layout,
    elem_bytes: usize,
) -> f64 {
    let (mesh, effect) = (network.mesh(), kind.effect());
    let Some(collective) = effect.collective else {
        return 0.0;
    };
    let bytes = |layout: &Layout| (layout.local_numel_max(mesh) * elem_bytes) as f64;
    let largest = match (effect.joins, effect.cuts) {
        (Some(_), Some(_)) => bytes(from).max(bytes(to)),
        (Some(_), None) => bytes(to),
        (None, _) => bytes(from),
    };
    let members = mesh.group_size(effect.axes);
    let rounds = collective.rounds(members);
    let received = rounds as f64 / members as f64 * largest;
    network.transfer_ns(effect.axes, rounds, received)
}
