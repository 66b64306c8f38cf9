//! Collectives that steps of redistributions are.

use crate::layout::redistribute::{Pieces, Step, StepKind};
use crate::mesh::collective::{Collective, Kind};
use crate::mesh::{AxisIndex, DType, MeshShape, Rank};

/// Returns the kind of the collective that a step is, and its axes; `None` of a local step.
pub(crate) fn collective(kind: &StepKind) -> Option<(Kind, Vec<AxisIndex>)> {
    Some((kind.collective()?, kind.axes().to_vec()))
}

/// As [`collective`], with the axes in the order of the group. Those of an all-reduce have shard axes last, and so first
/// to be reduced over, as where they scatter and the others reduce what is left (HSDP): the order of terms is the same.
pub(crate) fn ordered(kind: &StepKind, mesh: &MeshShape) -> Option<(Kind, Vec<AxisIndex>)> {
    let (kind, mut axes) = collective(kind)?;
    if kind == Kind::AllReduce {
        axes.sort_by_key(|axis| (mesh.role(*axis).shards(), *axis));
    }
    Some((kind, axes))
}

/// Returns the collective that a step is to `rank`, with its pieces; `None` of a local step.
pub(crate) fn described(
    step: &Step,
    mesh: &MeshShape,
    rank: Rank,
    dtype: DType,
) -> Option<Collective> {
    let effect = step.kind.effect();
    let geometry = step.geometry(mesh, rank);
    let sizes = |pieces: Pieces| (pieces.dim, pieces.sizes.into());
    let (cut, joined) = (geometry.cut.map(sizes), geometry.join.map(sizes));
    let block = &geometry.from;
    Collective::of_pieces(
        effect.collective?,
        effect.reduces,
        block,
        cut,
        joined,
        dtype.size(),
    )
}
