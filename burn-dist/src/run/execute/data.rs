//! Handles from host data and back.

use burn_backend::{DType, ExecutionError, Shape, TensorData};
use burn_ir::{BackendIr, TensorHandle};
use burn_std::future::DynFut;

/// Moves host data to `device`, as the kind of tensor that its dtype says.
pub fn from_data<B: BackendIr>(data: TensorData, device: &B::Device) -> B::Handle {
    match data.dtype {
        DType::QFloat(_) => B::quantized_tensor_handle(B::q_from_data(data, device)),
        DType::Bool(_) => B::bool_tensor_handle(B::bool_from_data(data, device)),
        dtype if dtype.is_float() => B::float_tensor_handle(B::float_from_data(data, device)),
        _ => B::int_tensor_handle(B::int_from_data(data, device)),
    }
}

/// Reads a tensor back to the host.
///
/// Backends on the host complete at once; others complete when the device has.
///
/// # Errors
/// What the backend reports, for example a kernel that failed before.
pub fn into_data<B: BackendIr>(
    handle: B::Handle,
    shape: Shape,
    dtype: DType,
) -> DynFut<Result<TensorData, ExecutionError>> {
    let handle = TensorHandle { handle, shape };
    match dtype {
        DType::QFloat(_) => Box::pin(B::q_into_data(B::quantized_tensor(handle))),
        DType::Bool(_) => Box::pin(B::bool_into_data(B::bool_tensor(handle))),
        dtype if dtype.is_float() => Box::pin(B::float_into_data(B::float_tensor(handle))),
        _ => Box::pin(B::int_into_data(B::int_tensor(handle))),
    }
}
