//! The activations of Burn 0.21, by their functions.

use burn_backend::ops::ActivationOps;
use burn_backend::tensor::FloatTensor;
use burn_dist_door::Activation::{self, *};
use burn_flex::Flex;
use burn_ir::OperationIr;

/// The samples of activations.
pub(super) const ACTIVATIONS: usize = 11;

pub(super) fn is_activation(op: &OperationIr) -> bool {
    Activation::of(op).is_some()
}

/// Returns what an activation makes of its inputs.
pub(super) fn activation(
    op: &OperationIr,
    float: &dyn Fn(usize) -> FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    match Activation::of(op).expect("one") {
        Relu => Flex::relu(float(0)),
        ReluBackward => Flex::relu_backward(float(0), float(1)),
        LeakyRelu { negative_slope } => Flex::leaky_relu(float(0), negative_slope.into()),
        Prelu => Flex::prelu(float(0), float(1)),
        Gelu => Flex::gelu(float(0)),
        GeluBackward => Flex::gelu_backward(float(0), float(1)),
        Sigmoid => Flex::sigmoid(float(0)),
        SigmoidBackward => Flex::sigmoid_backward(float(0), float(1)),
        HardSigmoid { alpha, beta } => Flex::hard_sigmoid(float(0), alpha.into(), beta.into()),
        LogSigmoid => Flex::log_sigmoid(float(0)),
        LogSigmoidBackward => Flex::log_sigmoid_backward(float(0), float(1)),
    }
}
