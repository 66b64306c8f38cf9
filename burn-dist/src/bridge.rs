//! From Burn's tensors and devices to those of a mesh, and back.
//!
//! Burn's dispatch has our backend where [the patch](crate) puts it. Whether it is there is found out when the program
//! runs: without the patch no device is one of a mesh, and so is no tensor, and all of this crate compiles.

use burn_core::backend::tensor::FloatTensor;
use burn_core::backend::{
    Autodiff, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
};
use burn_core::tensor::kind::{self, Basic};
use burn_core::tensor::{Device, Tensor};

pub(crate) use crate::device::mesh_device;
use crate::device::same;
use crate::record::parts::{Parts, Taken, TensorParts};
use crate::run::Fault;
use crate::{Dist, MeshDevice};

/// The backend with gradients, whatever it recomputes.
pub(crate) type Tracked = Autodiff<Dist>;

/// A tensor of a mesh, with what Burn's dispatch says of it.
pub(crate) struct OnMesh {
    pub(crate) tensor: BackendTensor<Dist>,
    context: DispatchAutodiffContext,
}

/// Returns a tensor as one of a mesh.
///
/// # Errors
/// The tensor as it was, if it is on no mesh.
#[allow(clippy::result_large_err, reason = "a tensor that is handed back")]
pub(crate) fn on_mesh<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
) -> Result<OnMesh, Tensor<D, K>> {
    let DispatchTensor { kind, autodiff } = tensor.into_dispatch();
    let (kind, is_tracked) = match kind {
        DispatchTensorKind::Autodiff(inner) => (*inner, true),
        kind => (kind, false),
    };
    let kind = match kind {
        // Without the patch it is another crate's.
        DispatchTensorKind::NdArray(tensor) => match same(tensor.clone()) {
            Some(tensor) => {
                return Ok(OnMesh {
                    tensor,
                    context: autodiff,
                });
            }
            None => DispatchTensorKind::NdArray(tensor),
        },
        kind => kind,
    };
    let kind = match is_tracked {
        true => DispatchTensorKind::Autodiff(Box::new(kind)),
        false => kind,
    };
    Err(Tensor::from_dispatch(DispatchTensor { kind, autodiff }))
}

impl OnMesh {
    /// Returns what Burn knows of its gradients.
    pub(crate) fn context(&self) -> DispatchAutodiffContext {
        self.context
    }

    /// Returns the same kind of tensor, with other contents.
    pub(crate) fn with(self, tensor: BackendTensor<Dist>) -> Self {
        Self { tensor, ..self }
    }

    /// Returns it as a tensor of Burn's.
    pub(crate) fn into_tensor<const D: usize, K: Basic>(self) -> Tensor<D, K> {
        from_mesh(self.tensor, self.context)
    }
}

/// Returns a tensor of a mesh as one of Burn's.
pub(crate) fn from_mesh<const D: usize, K: Basic>(
    tensor: BackendTensor<Dist>,
    autodiff: DispatchAutodiffContext,
) -> Tensor<D, K> {
    let is_tracked = matches!(tensor, BackendTensor::Autodiff(_));
    let kind = match same(tensor) {
        Some(tensor) => DispatchTensorKind::NdArray(tensor),
        None => unreachable!("Burn has no device of a mesh without the patch, and no tensor there"),
    };
    let kind = match is_tracked {
        true => DispatchTensorKind::Autodiff(Box::new(kind)),
        false => kind,
    };
    Tensor::from_dispatch(DispatchTensor { kind, autodiff })
}

/// Returns a tensor with gradients if its device is one with gradients, which recomputes as that says.
pub(crate) fn on_device<const D: usize, K: kind::Autodiff>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    match device.gradient_checkpointing_strategy() {
        None => tensor,
        Some(strategy) => tensor
            .autodiff()
            .with_gradient_checkpointing_strategy(strategy),
    }
}

/// Returns a handle on a tensor of a mesh.
pub(crate) fn taken(tensor: BackendTensor<Dist>) -> Box<dyn Taken> {
    match tensor {
        BackendTensor::Float(tensor) => Dist::take_float(tensor),
        BackendTensor::Int(tensor) => Dist::take_int(tensor),
        BackendTensor::Bool(tensor) => Dist::take_bool(tensor),
        BackendTensor::Autodiff(tensor) => Dist::take_float(tensor.into_primitive()),
        BackendTensor::Quantized(_) => unreachable!("nobody takes a quantized tensor"),
    }
}

/// Makes a float tensor of the parts that ranks of this process hold.
///
/// # Errors
/// The fault that has stopped the mesh.
pub(crate) fn from_parts(
    parts: TensorParts,
    device: &MeshDevice,
) -> Result<FloatTensor<Dist>, Fault> {
    let tensor = Dist::give(parts, device)?;
    Dist::float_of(tensor).ok_or_else(|| Fault::bug("a float was made as something else"))
}
