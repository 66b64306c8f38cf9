//! Activations that work element by element, recorded as one operation of the inner backend: Burn 0.21, whose burn-ir
//! has none of them.

use burn_backend::Scalar;
use burn_backend::ops::ActivationOps;
use burn_backend::tensor::FloatTensor;
use burn_ir::{CustomOpIr, OperationIr, TensorIr};

use super::{Dist, MeshTensor, record_on, recording};
use crate::{Activation, Call, Inner, RouterClient};

impl<E: Inner> ActivationOps<Self> for Dist<E> {
    fn relu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        unary(tensor, Activation::Relu)
    }

    fn relu_backward(output: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        binary(output, grad, Activation::ReluBackward)
    }

    fn leaky_relu(tensor: FloatTensor<Self>, negative_slope: Scalar) -> FloatTensor<Self> {
        let negative_slope = negative_slope.elem();
        unary(tensor, Activation::LeakyRelu { negative_slope })
    }

    fn prelu(tensor: FloatTensor<Self>, alpha: FloatTensor<Self>) -> FloatTensor<Self> {
        binary(tensor, alpha, Activation::Prelu)
    }

    fn gelu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        unary(tensor, Activation::Gelu)
    }

    fn gelu_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        binary(x, grad, Activation::GeluBackward)
    }

    fn sigmoid(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        unary(tensor, Activation::Sigmoid)
    }

    fn sigmoid_backward(output: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        binary(output, grad, Activation::SigmoidBackward)
    }

    fn hard_sigmoid(tensor: FloatTensor<Self>, alpha: Scalar, beta: Scalar) -> FloatTensor<Self> {
        let (alpha, beta) = (alpha.elem(), beta.elem());
        unary(tensor, Activation::HardSigmoid { alpha, beta })
    }

    fn log_sigmoid(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        unary(tensor, Activation::LogSigmoid)
    }

    fn log_sigmoid_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        binary(x, grad, Activation::LogSigmoidBackward)
    }
}

fn unary<E: Inner>(tensor: MeshTensor<E>, activation: Activation) -> MeshTensor<E> {
    record_on(tensor, |input, client| {
        let out = TensorIr::uninit(
            client.create_empty_handle(),
            input.shape.clone(),
            input.dtype,
        );
        OperationIr::Custom(CustomOpIr {
            id: activation.id(),
            inputs: vec![input],
            outputs: vec![out],
        })
    })
}

/// The result has the shape of `tensor`, to which `other` is broadcast.
fn binary<E: Inner>(
    tensor: MeshTensor<E>,
    other: MeshTensor<E>,
    activation: Activation,
) -> MeshTensor<E> {
    let _recording = recording!(activation.name(), tensor, other);
    record_on(tensor, |input, client| {
        let out = TensorIr::uninit(
            client.create_empty_handle(),
            input.shape.clone(),
            input.dtype,
        );
        OperationIr::Custom(CustomOpIr {
            id: activation.id(),
            inputs: vec![input, other.into_ir()],
            outputs: vec![out],
        })
    })
}
