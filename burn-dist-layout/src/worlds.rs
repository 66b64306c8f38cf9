//! Small worlds for tests: every layout of a shape on a mesh, and values to place in them.

use super::{DimLayout, Factor, Layout, Partial};
use burn_dist_mesh::{AxisIndex, MeshShape, Rank, ReduceOp};
use std::collections::BTreeSet;

/// Meshes of up to 8 ranks.
pub(crate) fn meshes() -> Vec<MeshShape> {
    let texts = [
        "1",
        "a:model=1,b:model=2",
        "a:model=2",
        "a:model=3",
        "a:model=8",
        "a:model=2,b:model=2",
        "a:model=2,b:model=3",
        "a:model=4,b:model=2",
        "a:model=2,b:model=2,c:model=2",
    ];
    texts.map(|text| MeshShape::parse(text).unwrap()).into()
}

/// Shapes with sizes 0, 1, prime and composite.
pub(crate) const SHAPES: [&[usize]; 8] =
    [&[], &[1], &[5], &[2, 3], &[7, 2], &[0, 3], &[12], &[4, 3]];

/// Every normalised layout of a shape: all factorisations, all places and orders of the axes, partial by `ops`, nothing
/// or everything at rest.
pub(crate) fn layouts(mesh: &MeshShape, shape: &[usize], ops: &[ReduceOp]) -> Vec<Layout> {
    let all = enumerate(mesh, shape, ops, factorisations);
    let rest = all.iter().map(|layout| {
        let mut rest = layout.clone();
        rest.at_rest = layout.sharded_axes().collect();
        rest.normalize(mesh);
        rest
    });
    let all: BTreeSet<_> = all.iter().cloned().chain(rest).collect();
    all.into_iter().collect()
}

/// Every normalised layout of a shape with one factor per dim and nothing at rest.
pub(crate) fn plain_layouts(mesh: &MeshShape, shape: &[usize], ops: &[ReduceOp]) -> Vec<Layout> {
    enumerate(mesh, shape, ops, |size| vec![vec![size]])
}

fn enumerate(
    mesh: &MeshShape,
    shape: &[usize],
    ops: &[ReduceOp],
    factorisations: impl Fn(usize) -> Vec<Vec<usize>>,
) -> Vec<Layout> {
    let mut starts = vec![Layout::replicated(&[])];
    for &size in shape {
        starts = starts
            .iter()
            .flat_map(|start| {
                factorisations(size).into_iter().map(|sizes| {
                    let mut layout = start.clone();
                    let factors = sizes.into_iter().map(Factor::whole).collect();
                    layout.dims.push(DimLayout { factors });
                    layout
                })
            })
            .collect();
    }
    for axis in mesh.axis_indices() {
        starts = starts
            .iter()
            .flat_map(|start| with_axis(start, axis, ops))
            .collect();
    }
    let all: BTreeSet<_> = starts
        .into_iter()
        .map(|mut layout| {
            layout.normalize(mesh);
            layout
        })
        .collect();
    all.into_iter().collect()
}

/// Returns the products of up to three factors, each above 1, that are a size.
fn factorisations(size: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![size]];
    for a in (2..size).filter(|a| size.is_multiple_of(*a)) {
        let b = size / a;
        all.push(vec![a, b]);
        all.extend(
            (2..b)
                .filter(|c| b.is_multiple_of(*c))
                .map(|c| vec![a, c, b / c]),
        );
    }
    all
}

fn with_axis(layout: &Layout, axis: AxisIndex, ops: &[ReduceOp]) -> Vec<Layout> {
    let mut all = vec![layout.clone()];
    for &op in ops {
        if layout
            .partial
            .iter()
            .all(|partial| partial.op.commutes_with(op))
        {
            let mut layout = layout.clone();
            layout.partial.push(Partial { axis, op });
            all.push(layout);
        }
    }
    for (d, dim) in layout.dims.iter().enumerate() {
        for (f, factor) in dim.factors.iter().enumerate() {
            for place in 0..=factor.axes.len() {
                let mut layout = layout.clone();
                layout.dims[d].factors[f].axes.insert(place, axis);
                all.push(layout);
            }
        }
    }
    all
}

/// The value of a global element; no two alike, none 0.
pub(crate) fn value(element: usize) -> f64 {
    (element * element + 3) as f64
}

/// The blocks of all ranks of the tensor whose elements are [`value`]; partial values consist of different terms.
pub(crate) fn blocks(mesh: &MeshShape, layout: &Layout) -> Vec<Vec<f64>> {
    mesh.ranks()
        .map(|rank| {
            layout
                .elements(mesh, rank)
                .map(|element| term(mesh, layout, rank, element))
                .collect()
        })
        .collect()
}

fn term(mesh: &MeshShape, layout: &Layout, rank: Rank, element: usize) -> f64 {
    layout
        .partial
        .iter()
        .fold(value(element), |value, partial| {
            let k = mesh.size(partial.axis);
            let i = mesh.coord(rank, partial.axis);
            let first = element % k;
            match partial.op {
                ReduceOp::Sum if i == first => {
                    value
                        - (0..k)
                            .filter(|&j| j != first)
                            .map(|j| j as f64 + 0.5)
                            .sum::<f64>()
                }
                ReduceOp::Sum => i as f64 + 0.5,
                ReduceOp::Mean => value + 2.0 * i as f64 - (k as f64 - 1.0),
                ReduceOp::Min => value + ((i + k - first) % k) as f64,
                ReduceOp::Max => value - ((i + k - first) % k) as f64,
                ReduceOp::Prod if i == first => value * 2f64.powi(k as i32 - 1),
                ReduceOp::Prod => 0.5,
            }
        })
}

/// Checks that the blocks are those of the tensor whose elements are [`value`], in this layout.
pub(crate) fn check(mesh: &MeshShape, layout: &Layout, blocks: &[Vec<f64>]) -> Result<(), String> {
    let mut resolved = blocks.to_vec();
    for partial in &layout.partial {
        resolved = mesh
            .ranks()
            .map(|rank| {
                let group = mesh.group_of(rank, &[partial.axis]);
                let len = resolved[rank.0 as usize].len();
                (0..len)
                    .map(|i| {
                        let terms = group.iter().map(|member| resolved[member.0 as usize][i]);
                        match partial.op {
                            ReduceOp::Sum => terms.sum(),
                            ReduceOp::Mean => terms.sum::<f64>() / group.len() as f64,
                            ReduceOp::Min => terms.fold(f64::INFINITY, f64::min),
                            ReduceOp::Max => terms.fold(f64::NEG_INFINITY, f64::max),
                            ReduceOp::Prod => terms.product(),
                        }
                    })
                    .collect()
            })
            .collect();
    }
    for (rank, found) in mesh.ranks().zip(&resolved) {
        let wanted: Vec<_> = layout.elements(mesh, rank).map(value).collect();
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        if wanted.len() != found.len() || !wanted.iter().zip(found).all(close) {
            return Err(format!("rank {rank} holds {found:?}, not {wanted:?}"));
        }
    }
    Ok(())
}
