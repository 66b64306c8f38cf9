//! Without the feature `cuda`, no backend shows device memory.

use std::sync::Arc;
use std::time::Duration;

use burn_ir::BackendIr;

use super::{Gpus, Identity};
use crate::comm::{GpuTransport, LocalHub, Reduction};

/// Asks a device who it is.
///
/// # Errors
/// Always: nothing here is a GPU.
pub(crate) fn identity<B: BackendIr>(_: &B::Device) -> Result<Identity, String> {
    Err("this program was built without burn-dist's feature `cuda`".into())
}

/// Returns `None`: nothing here is a GPU.
pub(crate) fn connect<B: BackendIr>(
    _: &[B::Device],
    _: (GpuTransport, Reduction),
    _: Duration,
    _: &Arc<LocalHub>,
) -> Option<Vec<Gpus<B>>> {
    None
}
