//! No backend shows device memory: without the feature `cuda`, and on the current line of Burn.

use std::sync::Arc;
use std::time::Duration;

use burn_backend::StreamId;
use burn_ir::BackendIr;

use super::Gpus;
use crate::comm::Communicator;
use burn_dist_gpu::owners::Identity;
use burn_dist_gpu::{GpuTransport, Reduction};

/// Asks a device who it is.
///
/// # Errors
/// Always: nothing here is a GPU.
pub(crate) fn identity<B: BackendIr>(_: &B::Device) -> Result<Identity, String> {
    Err(
        "this program was built without burn-dist's feature `cuda`, or for a Burn later than 0.21"
            .into(),
    )
}

/// Returns `None`: nothing here is a GPU.
pub(crate) fn connect<B: BackendIr>(
    _: &[B::Device],
    _: (GpuTransport, Reduction),
    _: Duration,
    _: &[Arc<dyn Communicator>],
) -> Option<Vec<Gpus<B>>> {
    None
}

/// Returns the tensor: whoever makes it is asked to keep its memory until all that read it have.
///
/// # Errors
/// Never.
pub(crate) fn crossed<B: BackendIr>(handle: B::Handle, _: StreamId) -> Result<B::Handle, String> {
    Ok(handle)
}
