//! Collectives that steps of redistributions are.

use super::task::CollectiveKind;
use crate::layout::redistribute::StepKind;
use crate::mesh::{AxisIndex, MeshShape};

/// Returns the kind of the collective that a step is, and its axes; `None` of a local step.
pub(crate) fn collective(kind: &StepKind) -> Option<(CollectiveKind, Vec<AxisIndex>)> {
    match kind {
        StepKind::AllGather { axes, .. } => Some((CollectiveKind::AllGather, axes.clone())),
        StepKind::ReduceScatter { axes, .. } => Some((CollectiveKind::ReduceScatter, axes.clone())),
        StepKind::AllReduce { axes, .. } => Some((CollectiveKind::AllReduce, axes.clone())),
        StepKind::AllToAll { axes, .. } => Some((CollectiveKind::AllToAll, axes.clone())),
        StepKind::Slice { .. } | StepKind::ToPartial { .. } | StepKind::Refactor => None,
    }
}

/// As [`collective`], with the axes in the order of the group. Those of an all-reduce have shard axes last, and so first
/// to be reduced over, as where they scatter and the others reduce what is left (HSDP): the order of terms is the same.
pub(crate) fn ordered(
    kind: &StepKind,
    mesh: &MeshShape,
) -> Option<(CollectiveKind, Vec<AxisIndex>)> {
    let (kind, mut axes) = collective(kind)?;
    if kind == CollectiveKind::AllReduce {
        axes.sort_by_key(|axis| (mesh.role(*axis).shards(), *axis));
    }
    Some((kind, axes))
}
