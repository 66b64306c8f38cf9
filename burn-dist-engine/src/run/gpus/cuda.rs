//! CubeCL's tensors as device memory: all that this crate knows of CubeCL's insides.

use std::any::{Any, TypeId};
use std::collections::BTreeSet;
use std::sync::{Arc, Once};
use std::time::Duration;

use burn_backend::{DType, Shape, StreamId};
use burn_cubecl::cubecl::Runtime;
use burn_cubecl::cubecl::client::ComputeClient;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_dist_cubecl::cuda as kernels;
use burn_dist_kernels::cuda::flag_wait;
use burn_ir::BackendIr;

use super::{Gpus, failed, settle};
use crate::burn::downcast;
use crate::comm::{CommError, Communicator};
use crate::mesh;
use crate::ops::dtype::to_burn;
use burn_dist_gpu::endpoint::{Memory, Placed};
use burn_dist_gpu::nccl::api::{Address, DeviceError};
use burn_dist_gpu::nccl::groups::Channels;
use burn_dist_gpu::nccl::{driver, ffi};
use burn_dist_gpu::owners::Identity;
use burn_dist_gpu::streams::api::{FlagWait, Hold};
use burn_dist_gpu::{GpuError, GpuTransport, Reduction, peer, streams, symmetric};

#[cfg(test)]
mod tests;

type Tensor = CubeTensor<CudaRuntime>;

/// Returns whether tensors of `B` are CubeCL's, on CUDA; burn-fusion's, around them, are not.
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
    (transport, reduction): (GpuTransport, Reduction),
    timeout: Duration,
    hosts: &[Arc<dyn Communicator>],
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
            "ranks of this process have several GPUs, and wait for each other before and after each launch"
        );
    }
    let ranks = ordinals.iter().zip(devices).zip(hosts);
    let gpus = ranks.map(|((&ordinal, device), host)| {
        let open = move || open(ordinal, transport, timeout);
        let memory = CubeMemory::<B>(device.clone());
        Gpus::<B>::new(memory, open, reduction, Arc::clone(host))
    });
    Some(gpus.collect())
}

/// Opens what a rank communicates through at a GPU.
fn open(ordinal: usize, transport: GpuTransport, timeout: Duration) -> Result<Channels, CommError> {
    let refused = |error| GpuError::Cuda {
        device: ordinal,
        reason: text(error),
    };
    let nccl = ffi::nccl()?;
    let gpu = driver::open(ordinal).map_err(refused)?;
    let mut channels = Channels::new(nccl, gpu.clone(), timeout);
    if matches!(transport, GpuTransport::Auto | GpuTransport::Workspace) {
        channels = channels.copying(peer::driver::copies(&gpu).map_err(refused)?);
    }
    match streams::driver::signals(&gpu) {
        Ok(signals) => {
            let ordered = channels.ordered(signals).map_err(refused)?;
            match transport {
                GpuTransport::Workspace => {
                    let symmetric = symmetric::driver::symmetric(&gpu).map_err(refused)?;
                    Ok(ordered.sharing(symmetric).map_err(refused)?)
                }
                _ => Ok(ordered),
            }
        }
        // Processes that share memory wait for each other on the device.
        Err(error) if transport == GpuTransport::Workspace => Err(refused(error).into()),
        Err(error) => {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    gpu = ordinal,
                    reason = text(error),
                    "ranks wait for their GPUs before and after each collective: this needs a driver for CUDA 12.5 or \
                     later"
                );
            });
            Ok(channels)
        }
    }
}

/// Returns a copy of a tensor in memory of the stream `to`; the stream that made the tensor waits for the copy, on the
/// device, so that the tensor's memory may be used again. What is on that stream already is returned as it is.
///
/// CubeCL 0.10 lets a stream wait for the one that has made a tensor, and keeps the memory of the tensor no longer than
/// its last handle lives on the host: a kernel of `to` might still have to read it when its own stream writes new data
/// there.
///
/// # Errors
/// What CubeCL says of the copy.
pub(crate) fn crossed<B: BackendIr>(handle: B::Handle, to: StreamId) -> Result<B::Handle, String> {
    if !is_cuda::<B>() {
        return Ok(handle);
    }
    let other = || "a tensor is not CubeCL's; this is a bug in burn-dist".to_string();
    let tensor: Tensor = downcast(handle).map_err(|_: B::Handle| other())?;
    let from = tensor.handle.stream;
    if from == to || tensor.meta.shape().num_elements() == 0 {
        return downcast(tensor).map_err(|_: Tensor| other());
    }
    let dtype = tensor.dtype;
    let mut bits = tensor.clone();
    bits.dtype = match dtype.size() {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    };
    let mut copy = to.executes(|| bits.copy());
    copy.dtype = dtype;
    let waited = from.executes(|| copy.client.get_resource(copy.handle.clone()));
    waited.map_err(|error| format!("{error:?}"))?;
    downcast(copy).map_err(|_: Tensor| other())
}

/// The tensors of a device.
struct CubeMemory<B: BackendIr>(B::Device);

impl<B: BackendIr> CubeMemory<B> {
    /// Asks CubeCL where a tensor is; what it has queued may still write it.
    fn placed(tensor: Tensor, bytes: usize) -> Result<Placed<B::Handle>, CommError> {
        // The offsets of a handle are part of what is returned. A tensor that another stream has made is waited for, on
        // the device, by this rank's stream: so that what is put behind this one is behind the other too.
        let resource = tensor.client.get_resource(tensor.handle.clone());
        let resource = resource.map_err(|error| failed(format!("{error:?}")))?;
        let found = resource.resource();
        if (found.size as usize) < bytes {
            return Err(failed(format!(
                "a tensor of {bytes} B lies in {} B of device memory",
                found.size
            )));
        }
        Ok(Placed {
            at: Address(found.ptr),
            tensor: Self::own(tensor)?,
            // It keeps the allocation, and is no handle that would forbid to write in place.
            hold: Box::new(resource) as Hold,
        })
    }

    fn own(tensor: Tensor) -> Result<B::Handle, CommError> {
        downcast(tensor).map_err(|_: Tensor| Self::other())
    }

    fn client(&self) -> Result<ComputeClient<CudaRuntime>, CommError> {
        let device = cuda_device::<B>(&self.0).ok_or_else(Self::other)?;
        Ok(CudaRuntime::client(device))
    }

    fn other() -> CommError {
        failed("a tensor is not CubeCL's; this is a bug in burn-dist".into())
    }
}

impl<B: BackendIr> Memory<B::Handle> for CubeMemory<B> {
    fn pinned(
        &self,
        tensor: B::Handle,
        elements: usize,
        dtype: mesh::DType,
    ) -> Result<Placed<B::Handle>, CommError> {
        let dtype = to_burn(dtype);
        let tensor: Tensor = downcast(tensor).map_err(|_: B::Handle| Self::other())?;
        if tensor.meta.shape().num_elements() != elements || tensor.dtype.size() != dtype.size() {
            return Err(failed(format!(
                "a tensor of {elements} x {} was expected, and this is {tensor:?}",
                dtype.name()
            )));
        }
        if elements == 0 {
            // No call has a part in it. Rows are as far apart as if they had elements, and a copy into another order
            // would be a kernel without threads.
            return Ok(Placed {
                tensor: Self::own(tensor)?,
                at: Address(0),
                hold: Box::new(()),
            });
        }
        Self::placed(into_contiguous(tensor), elements * dtype.size())
    }

    fn fresh(&self, elements: usize, dtype: mesh::DType) -> Result<Placed<B::Handle>, CommError> {
        let dtype = to_burn(dtype);
        let device = cuda_device::<B>(&self.0).ok_or_else(Self::other)?.clone();
        let client = CudaRuntime::client(&device);
        let bytes = elements * dtype.size();
        // Not pitched: rows lie one after the other.
        let buffer = client.empty(bytes.max(dtype.size()));
        let shape = Shape::from([elements]);
        let tensor = Tensor::new_contiguous(client, device, shape, buffer, dtype);
        Self::placed(tensor, bytes)
    }

    fn settle(&self) -> Result<(), CommError> {
        settle::<B>(&self.0)
    }

    fn submit(&self) -> Result<(), CommError> {
        let client = self.client()?;
        // A question that CubeCL answers once it has launched all that this thread gave it before, and not if one of
        // these launches has failed. A flush would wait for the device, up to where it was flushed before.
        match client.memory_usage() {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(format!("{error:?}"))),
        }
    }

    fn wait(&self, wait: FlagWait) -> Result<(), CommError> {
        let FlagWait {
            word,
            value,
            poison,
        } = wait;
        let (word, poison) = (word.0, poison.0);
        let wait = flag_wait::Wait {
            word,
            poison,
            value,
        };
        kernels::wait(&self.client()?, wait);
        Ok(())
    }
}
