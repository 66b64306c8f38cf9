//! Tensors of Burn as those of a backend that attends, and back.

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn_backend::Backend;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_core::backend::{
    BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
};
use burn_core::tensor::kind::Basic;
use burn_core::tensor::{Bool, GradientCheckpointingStrategy, Int, Tensor};
use burn_flex::Flex;

use crate::Dist;
use crate::bridge::{from_mesh, on_mesh};

/// A backend whose tensors are those of Burn's dispatch.
pub(crate) trait InBurn: Backend {
    /// Returns floats as the backend has them.
    fn float<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self>;
    /// Returns ints as the backend has them.
    fn int<const D: usize>(tensor: Tensor<D, Int>) -> IntTensor<Self>;
    /// Returns bools as the backend has them.
    fn bool<const D: usize>(tensor: Tensor<D, Bool>) -> BoolTensor<Self>;
    /// Returns floats as Burn has them.
    fn tensor<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D>;
    /// Returns bools as Burn has them.
    fn bool_tensor<const D: usize>(tensor: BoolTensor<Self>) -> Tensor<D, Bool>;
}

/// A backend without gradients, as the dispatch has it.
trait Plain: Backend {
    fn unwrap<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> BackendTensor<Self>;
    fn wrap<const D: usize, K: Basic>(
        tensor: BackendTensor<Self>,
        context: DispatchAutodiffContext,
    ) -> Tensor<D, K>;
}

impl Plain for Dist {
    fn unwrap<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> BackendTensor<Self> {
        match on_mesh(tensor) {
            Ok(tensor) => tensor.tensor,
            Err(tensor) => mixed("a mesh", &tensor),
        }
    }

    fn wrap<const D: usize, K: Basic>(
        tensor: BackendTensor<Self>,
        context: DispatchAutodiffContext,
    ) -> Tensor<D, K> {
        from_mesh(tensor, context)
    }
}

impl Plain for Flex {
    fn unwrap<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> BackendTensor<Self> {
        let inner = match tensor.clone().into_dispatch().kind {
            DispatchTensorKind::Autodiff(inner) => *inner,
            kind => kind,
        };
        match inner {
            DispatchTensorKind::Flex(tensor) => tensor,
            _ => mixed("Flex", &tensor),
        }
    }

    fn wrap<const D: usize, K: Basic>(
        tensor: BackendTensor<Self>,
        autodiff: DispatchAutodiffContext,
    ) -> Tensor<D, K> {
        let is_tracked = matches!(tensor, BackendTensor::Autodiff(_));
        let kind = DispatchTensorKind::Flex(tensor);
        let kind = match is_tracked {
            true => DispatchTensorKind::Autodiff(Box::new(kind)),
            false => kind,
        };
        Tensor::from_dispatch(DispatchTensor { kind, autodiff })
    }
}

fn mixed<const D: usize, K: Basic>(what: &str, other: &Tensor<D, K>) -> ! {
    panic!(
        "attention of queries on {what}, and another input on {:?}: move all of them to one device",
        other.device()
    )
}

const PLAIN: DispatchAutodiffContext = DispatchAutodiffContext::Disabled;

macro_rules! plain {
    ($($backend:ty;)+) => {$(
        impl InBurn for $backend {
            fn float<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self> {
                match Self::unwrap(tensor) {
                    BackendTensor::Float(tensor) => tensor,
                    BackendTensor::Autodiff(tensor) => tensor.into_primitive(),
                    other => unreachable!("floats are no {}", other.name()),
                }
            }

            fn int<const D: usize>(tensor: Tensor<D, Int>) -> IntTensor<Self> {
                Self::unwrap(tensor).int()
            }

            fn bool<const D: usize>(tensor: Tensor<D, Bool>) -> BoolTensor<Self> {
                Self::unwrap(tensor).bool()
            }

            fn tensor<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D> {
                Self::wrap(BackendTensor::Float(tensor), PLAIN)
            }

            fn bool_tensor<const D: usize>(tensor: BoolTensor<Self>) -> Tensor<D, Bool> {
                Self::wrap(BackendTensor::Bool(tensor), PLAIN)
            }
        }
    )+};
}

plain! {
    Dist;
    Flex;
}

macro_rules! tracked {
    ($($checkpointing:ty, $strategy:ident;)+) => {$(
        impl<B: Plain + InBurn> InBurn for Autodiff<B, $checkpointing> {
            fn float<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self> {
                match B::unwrap(tensor) {
                    BackendTensor::Autodiff(tensor) => tensor,
                    // A constant.
                    BackendTensor::Float(tensor) => <FloatTensor<Self>>::new(tensor),
                    other => unreachable!("floats are no {}", other.name()),
                }
            }

            fn int<const D: usize>(tensor: Tensor<D, Int>) -> IntTensor<Self> {
                B::int(tensor)
            }

            fn bool<const D: usize>(tensor: Tensor<D, Bool>) -> BoolTensor<Self> {
                B::bool(tensor)
            }

            fn tensor<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D> {
                let strategy = GradientCheckpointingStrategy::$strategy;
                let context = DispatchAutodiffContext::Enabled(strategy);
                B::wrap(BackendTensor::Autodiff(tensor), context)
            }

            fn bool_tensor<const D: usize>(tensor: BoolTensor<Self>) -> Tensor<D, Bool> {
                B::bool_tensor(tensor)
            }
        }
    )+};
}

tracked! {
    NoCheckpointing, Disabled;
    BalancedCheckpointing, Balanced;
}
