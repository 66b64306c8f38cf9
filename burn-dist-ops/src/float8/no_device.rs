//! Without the features `wgpu` and `cuda`, no backend is CubeCL's.

use super::super::family::prelude::*;
use super::Float8;

/// Returns false: nothing here runs it.
pub(super) fn run<B: BackendIr, E: Env<B>>(_: &Float8, _: &mut Context<'_, B, E>) -> bool {
    false
}

/// Returns false: the reference takes tensors by rows.
pub(super) fn turns<B: BackendIr>(_: &B::Device) -> bool {
    false
}

/// Returns nothing: the reference runs products.
pub(super) fn runs_by<B: BackendIr>(_: &B::Device) -> Option<String> {
    None
}
