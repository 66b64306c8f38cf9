//! Without the features `wgpu` and `cuda`, no backend is CubeCL's; and on Burn 0.21 there are no kernels for it.

use burn_dist_plan::region::Number;
use burn_ir::BackendIr;

use crate::plan::RegionKernels;
use crate::plan::task::RegionTask;
use crate::run::random::Pieces;

/// Returns nothing: regions run on tensors in memory.
#[allow(
    clippy::extra_unused_type_parameters,
    reason = "with GPUs it depends on the backend"
)]
pub(in crate::run) fn kernels<B: BackendIr>() -> Option<RegionKernels> {
    None
}

/// # Panics
/// Always: no plan has regions for it.
pub(super) fn run<B: BackendIr>(
    _: &RegionTask,
    _: Vec<B::Handle>,
    _: &[Number],
    _: &[Pieces],
    _: &B::Device,
) -> Vec<B::Handle> {
    unreachable!("regions run on tensors in memory")
}
