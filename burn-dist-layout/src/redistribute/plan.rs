//! Planning a redistribution.

use super::direct::direct;
use super::search::{common_factors, in_factors, search};
use super::{Step, StepKind};
use crate::cost::Network;
use crate::{Layout, LayoutError};
use burn_dist_mesh::{AxisIndex, MeshShape};

/// Returns the cheapest sequence of steps from one layout to another; empty if they are equal.
///
/// Deterministic, and the same on every rank. Each step starts from the layout in which the one before it ends.
///
/// ```
/// use burn_dist_mesh::MeshShape;
/// use burn_dist_layout::cost::Network;
/// use burn_dist_layout::{Layout, redistribute::plan};
/// let mesh = MeshShape::parse("fsdp=2,tp=2")?;
/// let grad = Layout::parse("[{tp}, -] + sum{fsdp}", &mesh, Some(&[1024, 512]))?;
/// let rest = Layout::parse("[{tp, fsdp*}, -]", &mesh, Some(&[1024, 512]))?;
/// let steps = plan(&Network::unknown(&mesh), &grad, &rest, 4)?;
/// let kinds: Vec<_> = steps.iter().map(|step| step.kind.name()).collect();
/// assert_eq!(kinds, ["reduce_scatter"]);
/// assert_eq!(steps[0].to, rest);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// # Errors
/// [`LayoutError::ShapeMismatch`], and those of [`Layout::validate`].
/// # Source
/// Redistribution as a search over placements: PyTorch DTensor, `_redistribute.py`; GSPMD (arXiv:2105.04663), on
/// resharding. Differs: layouts are axis lists per factor, and the search weighs the bytes of whole sequences.
pub fn plan(
    network: &Network<'_>,
    from: &Layout,
    to: &Layout,
    elem_bytes: usize,
) -> Result<Vec<Step>, LayoutError> {
    let mesh = network.mesh();
    if from == to {
        return Ok(Vec::new());
    }
    from.validate(mesh)?;
    to.validate(mesh)?;
    let shapes = (from.shape(), to.shape());
    if shapes.0 != shapes.1 {
        return Err(LayoutError::ShapeMismatch {
            source_shape: shapes.0,
            target_shape: shapes.1,
        });
    }
    // Without elements there is nothing to move: every rank makes its block, which has another shape.
    let path = if shapes.0.contains(&0) {
        vec![(StepKind::Refactor, to.clone())]
    } else {
        aligned(mesh, from, to).unwrap_or_else(|| search(network, from, to, elem_bytes))
    };
    Ok(with_rest(join(path), from, to))
}

/// Returns the sum of [`Step::cost`] over the steps of [`plan`], in nanoseconds; infinite if there is no plan.
pub fn cost(network: &Network<'_>, from: &Layout, to: &Layout, elem_bytes: usize) -> f64 {
    match plan(network, from, to, elem_bytes) {
        Ok(steps) => steps
            .iter()
            .map(|step| step.cost(network, elem_bytes))
            .sum(),
        Err(_) => f64::INFINITY,
    }
}

/// Writes both layouts in common factors and takes the direct path between them, if there is one.
fn aligned(mesh: &MeshShape, from: &Layout, to: &Layout) -> Option<Vec<(StepKind, Layout)>> {
    let mut source = from.clone();
    let mut target = to.clone();
    for (a, b) in source.dims.iter_mut().zip(&mut target.dims) {
        if a.sizes() != b.sizes() {
            let common = common_factors(&a.sizes(), &b.sizes());
            a.factors = in_factors(mesh, &a.factors, &common)?;
            b.factors = in_factors(mesh, &b.factors, &common)?;
        }
    }
    let kinds = direct(&source, &target)?;
    let mut path = Vec::with_capacity(kinds.len() + 2);
    if source.dims != from.dims {
        path.push((StepKind::Refactor, source.clone()));
    }
    let mut layout = source;
    for kind in kinds {
        layout = kind.apply(&layout);
        path.push((kind, layout.clone()));
    }
    if layout.dims != to.dims {
        path.push((StepKind::Refactor, to.clone()));
    }
    Some(path)
}

/// Joins neighbouring slices of one factor, and neighbouring refactors.
fn join(path: Vec<(StepKind, Layout)>) -> Vec<(StepKind, Layout)> {
    let mut out: Vec<(StepKind, Layout)> = Vec::with_capacity(path.len());
    for (kind, layout) in path {
        match (out.last_mut(), &kind) {
            (Some((StepKind::Refactor, last)), StepKind::Refactor) => *last = layout,
            (
                Some((StepKind::Slice { axes, dim, factor }, last)),
                StepKind::Slice {
                    axes: more,
                    dim: next_dim,
                    factor: next_factor,
                },
            ) if (*dim, *factor) == (*next_dim, *next_factor) => {
                axes.extend(more);
                *last = layout;
            }
            _ => out.push((kind, layout)),
        }
    }
    out
}

/// Turns a path into steps, with axes at rest: an axis that stays where it is rests as in the source, all others as in
/// the target. If that is not yet the target, a refactor says so at the end.
fn with_rest(path: Vec<(StepKind, Layout)>, from: &Layout, to: &Layout) -> Vec<Step> {
    let mut unmoved: Vec<AxisIndex> = from.sharded_axes().collect();
    let mut steps: Vec<Step> = Vec::with_capacity(path.len() + 1);
    let mut before = from.clone();
    for (kind, mut after) in path {
        let sharded: Vec<_> = after.sharded_axes().collect();
        let effect = kind.effect();
        let leaves = |axis: &AxisIndex| effect.joins.is_some() && effect.axes.contains(axis);
        unmoved.retain(|axis| sharded.contains(axis) && !leaves(axis));
        after.at_rest = sharded
            .into_iter()
            .filter(|axis| {
                let rests = if unmoved.contains(axis) {
                    &from.at_rest
                } else {
                    &to.at_rest
                };
                rests.contains(axis)
            })
            .collect();
        after.at_rest.sort();
        steps.push(Step {
            kind,
            from: before,
            to: after.clone(),
        });
        before = after;
    }
    if before != *to {
        match steps.last_mut() {
            Some(last) if last.kind == StepKind::Refactor => last.to = to.clone(),
            _ => steps.push(Step {
                kind: StepKind::Refactor,
                from: before,
                to: to.clone(),
            }),
        }
    }
    steps
}
