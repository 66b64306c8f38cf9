//! CubeCL's tensors as device memory: all that this crate knows of CubeCL's insides.

use std::any::{Any, TypeId};
use std::collections::BTreeSet;
use std::time::Duration;

use burn_backend::{DType, Shape};
use burn_cubecl::cubecl::Runtime;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_ir::BackendIr;

use super::{Gpus, Identity, Memory};
use crate::comm::nccl::api::{Address, DeviceError};
use crate::comm::nccl::{driver, ffi};
use crate::comm::{CommError, Reduction};
use crate::ops::flex::downcast;
use crate::run::bridge::CollectiveError;

#[cfg(test)]
mod tests;

type Tensor = CubeTensor<CudaRuntime>;

/// Whether tensors of `B` are CubeCL's, on CUDA; burn-fusion's, around them, are not.
fn is_cuda<B: BackendIr>() -> bool {
    TypeId::of::<B::Handle>() == TypeId::of::<Tensor>()
        && TypeId::of::<B::Device>() == TypeId::of::<CudaDevice>()
}

fn cuda_device<B: BackendIr>(device: &B::Device) -> Option<&CudaDevice> {
    (device as &dyn Any).downcast_ref()
}

fn text(error: DeviceError) -> String {
    format!("{} failed: {}", error.function, error.reason)
}

/// Asks a device who it is.
///
/// # Errors
/// What CUDA's driver says, or that there is none.
pub(crate) fn identity<B: BackendIr>(device: &B::Device) -> Result<Identity, String> {
    let device = cuda_device::<B>(device)
        .ok_or("it is no GPU of CUDA's")?
        .clone();
    // cudarc panics where there is no driver.
    std::panic::catch_unwind(|| driver::identity(device.index))
        .map_err(|_| "CUDA's driver (libcuda) cannot be loaded; is an NVIDIA driver installed?")?
        .map_err(text)
}

/// Returns what each rank of this process communicates with other GPUs through; `None` if `B` does not run on CUDA.
pub(crate) fn connect<B: BackendIr>(
    devices: &[B::Device],
    reduction: Reduction,
    timeout: Duration,
) -> Option<Vec<Gpus<B>>> {
    if !is_cuda::<B>() {
        return None;
    }
    let ordinals: Option<Vec<usize>> = devices
        .iter()
        .map(|device| cuda_device::<B>(device).map(|device| device.index))
        .collect();
    let ordinals = ordinals?;
    let distinct = BTreeSet::from_iter(&ordinals);
    if distinct.len() > 1 {
        tracing::info!(
            gpus = ?distinct,
            "ranks of this process have several GPUs, and wait for each other before and after each launch: one \
             process per GPU spares them that"
        );
    }
    let gpus = ordinals.iter().map(|&ordinal| {
        let open = move || {
            let nccl = ffi::nccl()?;
            let gpu = driver::open(ordinal).map_err(|error| CommError::Cuda {
                device: ordinal,
                reason: text(error),
            })?;
            Ok((nccl, gpu))
        };
        Gpus::new(CubeMemory, open, reduction, timeout)
    });
    Some(gpus.collect())
}

struct CubeMemory;

impl CubeMemory {
    /// Asks CubeCL where a tensor is; what it has queued may still write it.
    fn address(tensor: &Tensor, bytes: usize) -> Result<Address, CollectiveError> {
        // The offsets of a handle are part of what is returned. A tensor that another stream has made is waited for, on
        // the device, by this rank's stream: so a sync of this one is enough.
        let resource = tensor.client.get_resource(tensor.handle.clone());
        let resource = resource.map_err(|error| CollectiveError::Backend(format!("{error:?}")))?;
        let found = resource.resource();
        if (found.size as usize) < bytes {
            return Err(CollectiveError::Backend(format!(
                "a tensor of {bytes} B lies in {} B of device memory",
                found.size
            )));
        }
        Ok(Address(found.ptr))
    }

    fn own<B: BackendIr>(tensor: Tensor) -> Result<B::Handle, CollectiveError> {
        downcast(tensor).map_err(|_: Tensor| Self::other())
    }

    fn other() -> CollectiveError {
        CollectiveError::Backend("a tensor is not CubeCL's; this is a bug in burn-dist".into())
    }
}

impl<B: BackendIr> Memory<B> for CubeMemory {
    fn pinned(
        &self,
        handle: B::Handle,
        shape: &[usize],
        dtype: DType,
    ) -> Result<(B::Handle, Address), CollectiveError> {
        let tensor: Tensor = downcast(handle).map_err(|_: B::Handle| Self::other())?;
        let elements: usize = shape.iter().product();
        if tensor.meta.shape().num_elements() != elements || tensor.dtype.size() != dtype.size() {
            return Err(CollectiveError::Backend(format!(
                "a tensor of {elements} x {} was expected, and this is {tensor:?}",
                dtype.name()
            )));
        }
        if elements == 0 {
            // No call has a part in it. Rows are as far apart as if they had elements, and a copy into another order
            // would be a kernel without threads.
            return Ok((Self::own::<B>(tensor)?, Address(0)));
        }
        let tensor = into_contiguous(tensor);
        let address = Self::address(&tensor, elements * dtype.size())?;
        Ok((Self::own::<B>(tensor)?, address))
    }

    fn fresh(
        &self,
        elements: usize,
        dtype: DType,
        device: &B::Device,
    ) -> Result<(B::Handle, Address), CollectiveError> {
        let device = cuda_device::<B>(device).ok_or_else(Self::other)?.clone();
        let client = CudaRuntime::client(&device);
        let bytes = elements * dtype.size();
        // Not pitched: rows lie one after the other.
        let buffer = client.empty(bytes.max(dtype.size()));
        let shape = Shape::from([elements]);
        let tensor = Tensor::new_contiguous(client, device, shape, buffer, dtype);
        let address = Self::address(&tensor, bytes)?;
        Ok((Self::own::<B>(tensor)?, address))
    }
}
