//! Custom operations, recorded.

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_dist_door::{Call, MeshTensor, RouterClient};
use burn_ir::{BackendIr, TensorIr};
use burn_router::RouterTensor;

use super::{Dist, Ranks};
use crate::ops::Recorded;
use crate::ops::custom::{Custom, CustomError, CustomTensor, Execute, register};

/// Records an operation on the mesh of its inputs, and returns its results.
///
/// # Errors
/// [`CustomError`] if another type has its id, or there is no input.
///
/// # Panics
/// If the inputs are on several meshes.
pub fn call<B: BackendIr, O: Execute<B>>(
    op: O,
    inputs: Vec<CustomTensor<Dist<B>>>,
) -> Result<Vec<CustomTensor<Dist<B>>>, CustomError> {
    register::<O>()?;
    let infos: Vec<_> = inputs.iter().map(CustomTensor::info).collect();
    let inputs: Vec<MeshTensor<Ranks<B>>> = inputs.into_iter().map(router_tensor).collect();
    let Some(client) = inputs.first().map(|input| input.client.clone()) else {
        return Err(CustomError::NoInputs { id: O::ID });
    };
    let made = op.outputs(&infos);
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
    let op = Custom::new::<B, O>(op, inputs, outputs);
    client.with(|recorder| recorder.record(Recorded::Custom(Box::new(op))));
    drop(recording);
    Ok(results)
}

/// All kinds of tensors of a mesh are of one type.
fn router_tensor<B: BackendIr>(tensor: CustomTensor<Dist<B>>) -> MeshTensor<Ranks<B>> {
    let float = |tensor: FloatTensor<Dist<B>>| tensor;
    let int = |tensor: IntTensor<Dist<B>>| tensor;
    let bool = |tensor: BoolTensor<Dist<B>>| tensor;
    match tensor {
        CustomTensor::Float(tensor) => float(tensor),
        CustomTensor::Int(tensor) => int(tensor),
        CustomTensor::Bool(tensor) => bool(tensor),
    }
}
