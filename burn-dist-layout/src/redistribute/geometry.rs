//! The part of one rank in a step, in sizes: whoever executes steps reads it here.

use super::{Step, StepKind};
use crate::Layout;
use burn_dist_mesh::{AxisIndex, MeshShape, Rank};
use std::ops::Range;

/// The part of one rank in a step. Blocks are seen with every factor as a dim of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The rank's block before the step.
    pub from: Vec<usize>,
    /// Its block after the step.
    pub to: Vec<usize>,
    /// The pieces that are cut for the members of the group, of a block before the step.
    pub cut: Option<Pieces>,
    /// The pieces that are joined from the members of the group, into a block after the step.
    pub join: Option<Pieces>,
    /// The rank's index in the group.
    pub index: usize,
}

/// A dim, and the size of each member's piece of it, in group order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The dim.
    pub dim: usize,
    /// A size per member; they add up to that of the dim.
    pub sizes: Vec<usize>,
}

impl Pieces {
    /// Returns where the piece of a member lies.
    pub fn range(&self, member: usize) -> Range<usize> {
        let start: usize = self.sizes[..member].iter().sum();
        start..start + self.sizes[member]
    }
}

impl Step {
    /// Returns what the step is to `rank`.
    pub fn geometry(&self, mesh: &MeshShape, rank: Rank) -> Geometry {
        let from = block(&self.from, mesh, rank);
        let mut to = from.clone();
        let index = mesh.group_index(rank, self.kind.axes());
        let position = |(dim, factor): (usize, usize)| {
            let before = self.from.dims[..dim].iter().map(|dim| dim.factors.len());
            before.sum::<usize>() + factor
        };
        let pieces = |dim: usize, size: usize| Pieces {
            dim,
            sizes: pieces(size, mesh, self.kind.axes()),
        };
        let effect = self.kind.effect();
        let join = effect.joins.map(|place| {
            let whole = gathered_size(&self.from, mesh, rank, place, effect.axes.len());
            pieces(position(place), whole)
        });
        let cut = effect.cuts.map(|place| {
            let at = position(place);
            pieces(at, from[at])
        });
        if self.kind == StepKind::Refactor {
            to = block(&self.to, mesh, rank);
        }
        if let Some(cut) = &cut {
            to[cut.dim] = cut.sizes[index];
        }
        if let Some(join) = &join {
            to[join.dim] = join.sizes.iter().sum();
        }
        Geometry {
            from,
            to,
            cut,
            join,
            index,
        }
    }
}

/// Returns the sizes of the factors that a rank holds.
fn block(layout: &Layout, mesh: &MeshShape, rank: Rank) -> Vec<usize> {
    let factors = layout.factors();
    factors
        .map(|factor| factor.range(mesh, rank).len())
        .collect()
}

/// Returns the sizes of the pieces that `axes` cut `size` elements into, in group order.
fn pieces(size: usize, mesh: &MeshShape, axes: &[AxisIndex]) -> Vec<usize> {
    axes.iter().fold(vec![size], |sizes, &axis| {
        let parts = mesh.size(axis);
        sizes
            .into_iter()
            .flat_map(|size| (0..parts).map(move |part| crate::chunk(0..size, parts, part).len()))
            .collect()
    })
}

/// Returns the local size of a factor as it is once its minor-most `count` axes are gathered.
fn gathered_size(
    layout: &Layout,
    mesh: &MeshShape,
    rank: Rank,
    (dim, factor): (usize, usize),
    count: usize,
) -> usize {
    let mut factor = layout.dims[dim].factors[factor].clone();
    factor.axes.truncate(factor.axes.len() - count);
    factor.range(mesh, rank).len()
}
