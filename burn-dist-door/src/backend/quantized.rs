//! Quantized floats.
//!
//! Recorded as the float operations of the same name with a quantized dtype, which the ranks run on their quantized
//! tensors; `cast` to a quantized dtype quantizes by the range of the values. The planner keeps quantized tensors whole
//! on every rank (`ops/quantized.rs`).
//!
//! Arithmetic is left to Burn's defaults, which dequantize first: then it is split as arithmetic on floats is. That
//! goes for `q_matmul` too, so that a quantized weight does not make a matrix product whole; a backend's own kernel for
//! quantized products is not used.

use burn_backend::ops::QTensorOps;
use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn_backend::tensor::{Device, FloatTensor, IntTensor, QuantizedTensor};
use burn_backend::{DType, ExecutionError, FloatDType, IntDType, Shape, Slice, TensorData};
use burn_ir::{
    BaseOperationIr, CastOpIr, DequantizeOpIr, FlipOpIr, FloatOperationIr, GatherOpIr,
    NumericOperationIr, OperationIr, PermuteOpIr, QuantizationParametersIr, QuantizeOpIr,
    ReduceDimOpIr, SelectOpIr, ShapeOpIr, SliceOpIr, SwapDimsOpIr,
};

use super::{Dist, read, record_on, recording, reshape};
use crate::burn::{RouterChannel, client_of};
use crate::{Argument, Call, Inner, MeshChannel, MeshClient, RouterClient};

type Parameters<E> = QuantizationParametersPrimitive<Dist<E>>;

#[cfg(burn_021)]
mod parameters {
    use super::*;

    impl<E: Inner> Argument<E> for Parameters<E> {
        fn clients<'a>(&'a self, mut visit: impl FnMut(&'a MeshClient<E>)) {
            visit(&self.scales.client);
        }
    }

    pub(super) fn described<E: Inner>(parameters: Parameters<E>) -> QuantizationParametersIr {
        let scales = parameters.scales.into_ir();
        QuantizationParametersIr { scales }
    }
}

/// From 0.22 on, scales may be relative to one of the whole tensor.
#[cfg(not(burn_021))]
mod parameters {
    use super::*;

    impl<E: Inner> Argument<E> for Parameters<E> {
        fn clients<'a>(&'a self, visit: impl FnMut(&'a MeshClient<E>)) {
            let tensors = std::iter::once(&self.scales).chain(&self.global);
            tensors.map(|tensor| &tensor.client).for_each(visit);
        }
    }

    pub(super) fn described<E: Inner>(parameters: Parameters<E>) -> QuantizationParametersIr {
        QuantizationParametersIr {
            scales: parameters.scales.into_ir(),
            global: parameters.global.map(|global| global.into_ir()),
        }
    }
}

impl<E: Inner> QTensorOps<Self> for Dist<E> {
    fn q_from_data(data: TensorData, device: &Device<Self>) -> QuantizedTensor<Self> {
        client_of::<E>(device).register_tensor_data(data)
    }

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let _recording = recording!("quantize", tensor, qparams);
        record_on(tensor, |tensor, client| {
            let qparams = parameters::described(qparams);
            let desc =
                QuantizeOpIr::create(tensor, qparams, *scheme, || client.create_empty_handle());
            OperationIr::Float(desc.tensor.dtype, FloatOperationIr::Quantize(desc))
        })
    }

    fn quantize_dynamic(tensor: FloatTensor<Self>, scheme: &QuantScheme) -> QuantizedTensor<Self> {
        record_on(tensor, |tensor, client| {
            let desc = CastOpIr::create(tensor, DType::QFloat(*scheme), || {
                client.create_empty_handle()
            });
            OperationIr::BaseFloat(BaseOperationIr::Cast(desc))
        })
    }

    fn dequantize(tensor: QuantizedTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = DequantizeOpIr::create(input, dtype.into(), || client.create_empty_handle());
            OperationIr::Float(desc.out.dtype, FloatOperationIr::Dequantize(desc))
        })
    }

    #[cfg(burn_021)]
    fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
        tensor.client.device()
    }

    fn q_to_device(tensor: QuantizedTensor<Self>, device: &Device<Self>) -> QuantizedTensor<Self> {
        if tensor.client.device() == *device {
            return tensor;
        }
        MeshChannel::<E>::change_client_backend(tensor, device)
    }

    async fn q_into_data(tensor: QuantizedTensor<Self>) -> Result<TensorData, ExecutionError> {
        read(tensor).await
    }

    fn q_reshape(tensor: QuantizedTensor<Self>, shape: Shape) -> QuantizedTensor<Self> {
        reshape(tensor, shape, OperationIr::BaseFloat)
    }

    fn q_expand(tensor: QuantizedTensor<Self>, shape: Shape) -> QuantizedTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = ShapeOpIr::expand(input, shape, || client.create_empty_handle());
            OperationIr::BaseFloat(BaseOperationIr::Expand(desc))
        })
    }

    fn q_swap_dims(
        tensor: QuantizedTensor<Self>,
        dim1: usize,
        dim2: usize,
    ) -> QuantizedTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = SwapDimsOpIr::create(input, dim1, dim2, || client.create_empty_handle());
            OperationIr::BaseFloat(BaseOperationIr::SwapDims(desc))
        })
    }

    fn q_permute(tensor: QuantizedTensor<Self>, axes: &[usize]) -> QuantizedTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = PermuteOpIr::create(input, axes.into(), || client.create_empty_handle());
            OperationIr::BaseFloat(BaseOperationIr::Permute(desc))
        })
    }

    fn q_flip(tensor: QuantizedTensor<Self>, axes: &[usize]) -> QuantizedTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = FlipOpIr::create(input, axes.into(), || client.create_empty_handle());
            OperationIr::BaseFloat(BaseOperationIr::Flip(desc))
        })
    }

    fn q_slice(tensor: QuantizedTensor<Self>, slices: &[Slice]) -> QuantizedTensor<Self> {
        record_on(tensor, |tensor, client| {
            let desc = SliceOpIr::create(tensor, slices.into(), || client.create_empty_handle());
            OperationIr::BaseFloat(BaseOperationIr::Slice(desc))
        })
    }

    fn q_select(
        tensor: QuantizedTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
    ) -> QuantizedTensor<Self> {
        let _recording = recording!("q_select", tensor, indices);
        record_on(tensor, |tensor, client| {
            let desc = SelectOpIr::create(tensor, dim, indices.into_ir(), || {
                client.create_empty_handle()
            });
            OperationIr::BaseFloat(BaseOperationIr::Select(desc))
        })
    }

    fn q_gather(
        dim: usize,
        tensor: QuantizedTensor<Self>,
        indices: IntTensor<Self>,
    ) -> QuantizedTensor<Self> {
        let _recording = recording!("q_gather", tensor, indices);
        record_on(tensor, |tensor, client| {
            let desc = GatherOpIr::create(tensor, dim, indices.into_ir(), || {
                client.create_empty_handle()
            });
            OperationIr::BaseFloat(BaseOperationIr::Gather(desc))
        })
    }

    fn q_argmax(tensor: QuantizedTensor<Self>, dim: usize, out_dtype: IntDType) -> IntTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = ReduceDimOpIr::create_arg(input, dim, 1, out_dtype.into(), || {
                client.create_empty_handle()
            });
            OperationIr::NumericFloat(desc.input.dtype, NumericOperationIr::ArgMax(desc))
        })
    }

    fn q_argmin(tensor: QuantizedTensor<Self>, dim: usize, out_dtype: IntDType) -> IntTensor<Self> {
        record_on(tensor, |input, client| {
            let desc = ReduceDimOpIr::create_arg(input, dim, 1, out_dtype.into(), || {
                client.create_empty_handle()
            });
            OperationIr::NumericFloat(desc.input.dtype, NumericOperationIr::ArgMin(desc))
        })
    }
}
