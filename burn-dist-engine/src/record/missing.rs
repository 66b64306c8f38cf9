//! Devices that are not there, named before a rank starts on one.

use burn_backend::backend::{DeviceId, DeviceOps};

/// A device that is not there, the reason, and what to do.
pub(super) struct Missing {
    pub(super) device: String,
    pub(super) reason: String,
}

/// Returns the first of these devices, or the default one if there are none, that is not there.
pub(super) type FindMissing = fn(&[DeviceId]) -> Option<Missing>;

/// Returns the first device of type `D` that cannot be computed on, as far as its driver tells: of `devices`, or the
/// default one if none are named.
pub(super) fn missing<D: DeviceOps>(devices: &[DeviceId]) -> Option<Missing> {
    let default = devices.is_empty().then(D::default);
    let devices = devices.iter().map(|&id| D::from_id(id)).chain(default);
    let mut missing = devices.filter_map(|device| {
        let reason = reason(&device)?;
        Some(Missing {
            device: format!("{device:?}"),
            reason,
        })
    });
    missing.next()
}

#[cfg(feature = "cuda")]
fn reason<D: 'static>(device: &D) -> Option<String> {
    let index = crate::burn::cuda_index(device)?;
    burn_dist_gpu::nccl::driver::missing(index)
}

/// The host is always there; what other backends have, they tell themselves.
#[cfg(not(feature = "cuda"))]
fn reason<D>(_: &D) -> Option<String> {
    None
}
