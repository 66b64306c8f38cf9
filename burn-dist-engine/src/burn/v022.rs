//! Burn 0.22.

use std::mem::MaybeUninit;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::backend::DeviceSettings;
use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, DType, DeviceOps, get_or_init_device_settings};
use burn_std::{
    AccessError, AccessPolicy, AllocationController, AllocationError, AllocationProperty,
};

use crate::comm::PoolMemory;

/// True if the backend of a program says what its ranks compute on; here its mesh does.
pub(crate) const NAMES_BACKEND: bool = false;

/// Returns what tensors on a device are made of where a program does not say.
pub(crate) fn settings<B: Backend>(device: &B::Device) -> DeviceSettings {
    get_or_init_device_settings::<B>(device)
}

/// Returns the number of a device that is one of CUDA's.
#[cfg(feature = "cuda")]
pub(crate) fn cuda_index(device: &dyn std::any::Any) -> Option<usize> {
    match device.downcast_ref()? {
        burn_cubecl::CubeDevice::Cuda(device) => Some(device.index),
        _ => None,
    }
}

/// Returns how a backend stores bools by default.
pub(crate) fn bool_type<B: Backend>(device: &B::Device) -> DType {
    device.defaults().bool_dtype.into()
}

/// Returns a tensor without its part of the graph of gradients.
pub(crate) fn primitive<B: Backend, C: CheckpointStrategy>(
    tensor: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<B> {
    tensor.into_primitive()
}

/// The alignment that Burn's bytes report: their clones use it, and they support at most 16.
const REPORTED_ALIGN: usize = 16;

/// The owner behind bytes in memory of a pool.
pub(crate) struct Pooled(pub(crate) PoolMemory);

impl AllocationController for Pooled {
    fn alloc_align(&self) -> usize {
        REPORTED_ALIGN
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Native
    }

    fn grow(&mut self, size: usize, align: usize) -> Result<(), AllocationError> {
        if align > PoolMemory::ALIGN {
            return Err(AllocationError::UnsupportedOperation);
        }
        self.0.grow(size);
        Ok(())
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Ok(self.0.as_uninit_mut())
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.0.as_uninit())
    }
}

/// True if the turned weight of a layer, for the gradient of its `x`, is one in order first.
pub(crate) const REORDERS_TURNED: bool = false;
