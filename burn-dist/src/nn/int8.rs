//! Matrices that rest in 8 bits.

use burn_backend::ops::QTensorOps;
use burn_core::backend::{BackendTensor, DispatchAutodiffContext};
use burn_core::tensor::{FloatDType, Tensor};

use crate::Dist;
use crate::bridge::{from_mesh, on_mesh};
use crate::ops::int8::{is_packed, scheme};

/// Returns a tensor that rests in 8 bits: signed ones, 32 neighbours along the last dim with one scale. It is split
/// over a mesh and gathered as it rests, and can be dequantized, which is exact in f32 and bf16; nothing else takes it.
///
/// One that rests so already stays as it is. Off a mesh it is what Burn makes of the scheme.
///
/// # Gradient
/// None: rounding has none.
pub(crate) fn packed<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let Some(scheme) = scheme().filter(|_| !is_packed(tensor.dtype())) else {
        return tensor;
    };
    match on_mesh(tensor.set_require_grad(false)) {
        Ok(tensor) => {
            let context = tensor.context();
            let plain = match tensor.tensor {
                BackendTensor::Float(plain) => plain,
                BackendTensor::Autodiff(tracked) => tracked.into_primitive(),
                other => return from_mesh(other, context),
            };
            let packed = Dist::quantize_dynamic(plain, &scheme);
            from_mesh(BackendTensor::Quantized(packed), context)
        }
        Err(tensor) => tensor.quantize_dynamic(&scheme),
    }
}

/// Returns the values of a tensor that rests in 8 bits, in pieces as it rests, in bf16, which has all of them exactly.
pub(crate) fn at_rest_in_bf16<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if !is_packed(tensor.dtype()) {
        return tensor;
    }
    match on_mesh(tensor) {
        Ok(tensor) => match tensor.tensor {
            BackendTensor::Quantized(packed) => {
                let values = Dist::dequantize(packed, FloatDType::BF16);
                from_mesh(
                    BackendTensor::Float(values),
                    DispatchAutodiffContext::Disabled,
                )
            }
            other => from_mesh(other, DispatchAutodiffContext::Disabled),
        },
        Err(tensor) => tensor.dequantize(),
    }
}
