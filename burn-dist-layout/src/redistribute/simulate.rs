//! Steps executed on plain vectors: the reference for every executor.

use super::{Step, StepKind};
use crate::Layout;
use burn_dist_mesh::{AxisIndex, MeshShape, Rank, ReduceOp};
use std::ops::Range;

/// Executes steps on the local blocks of all ranks, one vector per rank in row-major order, and returns the blocks
/// afterwards.
///
/// It reads nothing but the description of each step, as a real executor would.
///
/// # Panics
/// If the blocks do not have the sizes that `from` gives them, or the steps do not fit together.
pub(super) fn simulate(
    mesh: &MeshShape,
    from: &Layout,
    steps: &[Step],
    locals: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    assert_eq!(locals.len(), mesh.num_ranks(), "one block per rank");
    let mut layout = from;
    let mut blocks = locals.to_vec();
    assert_sizes(mesh, layout, &blocks);
    for step in steps {
        assert_eq!(
            &step.from, layout,
            "each step starts where the last one ended"
        );
        if step.kind != StepKind::Refactor {
            let sizes = |layout: &Layout| layout.factors().map(|f| f.size).collect::<Vec<_>>();
            assert_eq!(
                sizes(&step.from),
                sizes(&step.to),
                "only a refactor changes factors"
            );
        }
        blocks = mesh
            .ranks()
            .map(|rank| execute(mesh, step, rank, &blocks))
            .collect();
        layout = &step.to;
        assert_sizes(mesh, layout, &blocks);
    }
    blocks
}

fn assert_sizes(mesh: &MeshShape, layout: &Layout, blocks: &[Vec<f64>]) {
    for (rank, block) in mesh.ranks().zip(blocks) {
        let size = layout.local_numel(mesh, rank);
        assert_eq!(block.len(), size, "rank {rank} in {}", layout.display(mesh));
    }
}

/// Returns the block of one rank after the step, from the blocks of all ranks before it.
fn execute(mesh: &MeshShape, step: &Step, rank: Rank, blocks: &[Vec<f64>]) -> Vec<f64> {
    let geometry = step.geometry(mesh, rank);
    let block = |rank: Rank| blocks[rank.0 as usize].as_slice();
    let terms = |axes: &[AxisIndex]| -> Vec<&[f64]> {
        mesh.group_of(rank, axes).into_iter().map(block).collect()
    };
    // The rank's piece of a block.
    let own = |shape: Vec<usize>, data: &[f64]| match &geometry.cut {
        Some(cut) => View { shape, data }.cut(cut.dim, cut.range(geometry.index)),
        None => data.to_vec(),
    };
    if let StepKind::ToPartial { axis, op } = &step.kind {
        return to_partial(mesh, rank, *axis, *op, block(rank));
    }
    let effect = step.kind.effect();
    if let Some(join) = &geometry.join {
        let members = mesh.group_of(rank, effect.axes);
        let pieces = members.into_iter().map(|member| {
            let shape = step.geometry(mesh, member).from;
            own(shape, block(member))
        });
        let pieces: Vec<Vec<f64>> = pieces.collect();
        let views = pieces.iter().zip(&join.sizes).map(|(data, &size)| {
            let mut shape = geometry.to.clone();
            shape[join.dim] = size;
            View { shape, data }
        });
        return joined(&views.collect::<Vec<_>>(), join.dim);
    }
    match effect.reduces {
        Some(op) => own(geometry.from.clone(), &reduce(op, &terms(effect.axes))),
        None => own(geometry.from.clone(), block(rank)),
    }
}

fn to_partial(
    mesh: &MeshShape,
    rank: Rank,
    axis: AxisIndex,
    op: ReduceOp,
    block: &[f64],
) -> Vec<f64> {
    if op.is_idempotent() || mesh.coord(rank, axis) == 0 {
        return block.to_vec();
    }
    let identity = match op {
        // Unlike 0.0, it leaves -0.0 as it is.
        ReduceOp::Sum => -0.0,
        _ => 1.0,
    };
    vec![identity; block.len()]
}

fn reduce(op: ReduceOp, terms: &[&[f64]]) -> Vec<f64> {
    let combine = |a: f64, b: f64| match op {
        ReduceOp::Sum | ReduceOp::Mean => a + b,
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Prod => a * b,
    };
    let (first, rest) = terms
        .split_first()
        .expect("a group has at least one member");
    let mut out = first.to_vec();
    for term in rest {
        for (a, &b) in out.iter_mut().zip(*term) {
            *a = combine(*a, b);
        }
    }
    if op == ReduceOp::Mean {
        for (i, a) in out.iter_mut().enumerate() {
            let are_equal = rest.iter().all(|term| term[i] == first[i]);
            *a = if are_equal {
                first[i]
            } else {
                *a / terms.len() as f64
            };
        }
    }
    out
}

/// A local block with every factor as a dim.
struct View<'a> {
    shape: Vec<usize>,
    data: &'a [f64],
}

impl View<'_> {
    /// The part of the block in which dim `at` is within `keep`.
    fn cut(&self, at: usize, keep: Range<usize>) -> Vec<f64> {
        let inner: usize = self.shape[at + 1..].iter().product();
        let outer: usize = self.shape[..at].iter().product();
        let row = self.shape[at] * inner;
        (0..outer)
            .flat_map(|i| &self.data[i * row + keep.start * inner..i * row + keep.end * inner])
            .copied()
            .collect()
    }
}

/// Joins blocks along dim `at`.
fn joined(pieces: &[View<'_>], at: usize) -> Vec<f64> {
    let first = pieces.first().expect("a group has at least one member");
    let inner: usize = first.shape[at + 1..].iter().product();
    let outer: usize = first.shape[..at].iter().product();
    let mut out = Vec::new();
    for i in 0..outer {
        for piece in pieces {
            let row = piece.shape[at] * inner;
            out.extend_from_slice(&piece.data[i * row..(i + 1) * row]);
        }
    }
    out
}
