//! CUDA's driver, as far as it copies between GPUs.

use super::api::{Copies, Identity};
use crate::device::{Address, DeviceError, Stream};
use crate::nccl::driver::{Device, can_access, has_pools, named, raw_stream};
use cudarc::driver::result::{self, device};
use cudarc::driver::sys;
use std::sync::Arc;

/// One GPU, and those that it reads.
struct Driver {
    identity: Identity,
    reachable: Vec<Identity>,
}

/// Returns how a GPU copies from others of this process.
///
/// # Errors
/// What the driver says.
pub fn copies(of: &Arc<Device>) -> Result<Arc<dyn Copies>, DeviceError> {
    let mut reachable = Vec::new();
    for other in 0..device::get_count().map_err(named("cuDeviceGetCount"))? {
        let other = device::get(other).map_err(named("cuDeviceGet"))?;
        // Memory of a pool is open to the others since its device was opened; other memory is not.
        if other != of.number && has_pools(other)? && can_access(of.number, other)? {
            reachable.push(identity(other)?);
        }
    }
    Ok(Arc::new(Driver {
        identity: identity(of.number)?,
        reachable,
    }))
}

fn identity(of: sys::CUdevice) -> Result<Identity, DeviceError> {
    let uuid = device::get_uuid(of).map_err(named("cuDeviceGetUuid"))?;
    Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

impl Copies for Driver {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn reachable(&self) -> Vec<Identity> {
        self.reachable.clone()
    }

    unsafe fn copy(
        &self,
        stream: Stream,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise. Addresses are unique over the GPUs of a process, so the driver sees that it is
        // a copy between two of them, and leaves it to a copy engine.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, raw_stream(stream)) }
            .map_err(named("cuMemcpyDtoDAsync"))
    }
}
