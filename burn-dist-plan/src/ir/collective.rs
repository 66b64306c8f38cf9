//! Collectives that steps of redistributions are.

use crate::layout::redistribute::{Pieces, Step, StepKind};
use crate::mesh::collective::{AllToAll, Collective, Kind, Strided};
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
    let elem = dtype.size();
    let geometry = step.geometry(mesh, rank);
    let block = geometry.from;
    let parts = |pieces: Pieces| Strided {
        outer: block[..pieces.dim].iter().product(),
        inner_bytes: block[pieces.dim + 1..].iter().product::<usize>() * elem,
        mid_sizes: pieces.sizes.into(),
    };
    Some(match (&step.kind, geometry.cut, geometry.join) {
        (StepKind::AllReduce { op, .. }, ..) => Collective::AllReduce {
            op: *op,
            bytes: block.iter().product::<usize>() * elem,
        },
        (StepKind::AllGather { .. }, _, Some(joined)) => Collective::AllGather(parts(joined)),
        (StepKind::ReduceScatter { op, .. }, Some(cut), _) => Collective::ReduceScatter {
            op: *op,
            parts: parts(cut),
        },
        (StepKind::AllToAll { .. }, Some(cut), Some(joined)) => {
            let mut shape = block.clone();
            shape[joined.dim] = joined.sizes.iter().sum();
            Collective::AllToAll(AllToAll {
                shape: shape.into(),
                split: (cut.dim, cut.sizes.into()),
                concat: (joined.dim, joined.sizes.into()),
                elem_bytes: elem,
            })
        }
        _ => return None,
    })
}
