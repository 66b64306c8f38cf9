//! Custom operations, recorded.

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_dist_door::{Call, Dist, MeshDevice, MeshTensor, Registered, RouterClient};
use burn_ir::{BackendIr, TensorIr};
use burn_router::RouterTensor;

use super::any::{AnyRecorder, client, with};
use super::{OnRanks, Ranks};
use crate::ops::Recorded;
use crate::ops::custom::{
    AnyKernel, Custom, CustomError, CustomOp, CustomTensor, Execute, WithKernels, check_formula,
    kernel, register,
};

/// Ranks that run an operation.
pub trait Callable<O: CustomOp>: OnRanks {
    /// Returns the kernel for the backend that the ranks of a recorder compute on.
    #[doc(hidden)]
    fn kernel(recorder: &dyn AnyRecorder) -> Result<AnyKernel, CustomError>;
}

impl<B: BackendIr, O: Execute<B>> Callable<O> for Ranks<B> {
    fn kernel(_: &dyn AnyRecorder) -> Result<AnyKernel, CustomError> {
        Ok(kernel::<B, O>())
    }
}

impl<O: WithKernels> Callable<O> for Registered {
    fn kernel(recorder: &dyn AnyRecorder) -> Result<AnyKernel, CustomError> {
        O::kernels().find(recorder.backend())
    }
}

/// Returns whether the ranks of a mesh have a kernel for an operation.
pub fn has_kernel<E: Callable<O>, O: CustomOp>(device: &MeshDevice) -> bool {
    with(&client::<E>(device), |recorder| E::kernel(recorder).is_ok())
}

/// Records an operation on the mesh of its inputs, and returns its results.
///
/// # Errors
/// [`CustomError`] if another type has its id, there is no input, it has no kernel for the ranks' backend, or a formula
/// that does not go with its outputs.
///
/// # Panics
/// If the inputs are on several meshes.
pub fn call<E: Callable<O>, O: CustomOp>(
    op: O,
    inputs: Vec<CustomTensor<Dist<E>>>,
) -> Result<Vec<CustomTensor<Dist<E>>>, CustomError> {
    register::<O>()?;
    let infos: Vec<_> = inputs.iter().map(CustomTensor::info).collect();
    let inputs: Vec<MeshTensor<E>> = inputs.into_iter().map(router_tensor).collect();
    let Some(client) = inputs.first().map(|input| input.client.clone()) else {
        return Err(CustomError::NoInputs { id: O::ID });
    };
    let (kernel, is_checked) = with(&client, |recorder| {
        let kernel = E::kernel(recorder);
        (kernel, recorder.formulas().contains(&op, &infos))
    });
    let kernel = kernel?;
    let made = op.outputs(&infos);
    if !is_checked {
        check_formula(&op, &infos, &made)?;
        with(&client, |recorder| recorder.formulas().insert(&op, &infos));
    }
    let mut this = Call::new(O::ID);
    for input in &inputs {
        this = this.with(input);
    }
    let recording = this.begin();
    let inputs = inputs.into_iter().map(RouterTensor::into_ir).collect();
    let outputs: Vec<TensorIr> = made
        .into_iter()
        .map(|info| TensorIr::uninit(client.create_empty_handle(), info.shape.into(), info.dtype))
        .collect();
    let results = outputs.iter().map(|out| {
        let tensor = RouterTensor::new(out.id, out.shape.clone(), out.dtype, client.clone());
        if out.dtype.is_float() {
            CustomTensor::Float(tensor)
        } else if out.dtype.is_bool() {
            CustomTensor::Bool(tensor)
        } else {
            CustomTensor::Int(tensor)
        }
    });
    let results = results.collect();
    let op = Custom::new(op, kernel, inputs, outputs);
    with(&client, |recorder| {
        recorder.record_any(Recorded::Custom(Box::new(op)))
    });
    drop(recording);
    Ok(results)
}

/// All kinds of tensors of a mesh are of one type.
fn router_tensor<E: OnRanks>(tensor: CustomTensor<Dist<E>>) -> MeshTensor<E> {
    let float = |tensor: FloatTensor<Dist<E>>| tensor;
    let int = |tensor: IntTensor<Dist<E>>| tensor;
    let bool = |tensor: BoolTensor<Dist<E>>| tensor;
    match tensor {
        CustomTensor::Float(tensor) => float(tensor),
        CustomTensor::Int(tensor) => int(tensor),
        CustomTensor::Bool(tensor) => bool(tensor),
    }
}
