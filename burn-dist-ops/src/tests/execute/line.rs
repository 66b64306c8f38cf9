//! The activations, by their functions.

use burn_backend::ops::ActivationOps;
use burn_backend::tensor::FloatTensor;
use burn_flex::Flex;
use burn_ir::ActivationOperationIr::*;
use burn_ir::OperationIr;

/// The samples of activations.
pub(super) const ACTIVATIONS: usize = 15;

pub(super) fn is_activation(op: &OperationIr) -> bool {
    matches!(op, OperationIr::Activation(_))
}

/// Returns what an activation makes of its inputs.
pub(super) fn activation(
    op: &OperationIr,
    float: &dyn Fn(usize) -> FloatTensor<Flex>,
) -> FloatTensor<Flex> {
    let OperationIr::Activation(op) = op else {
        panic!("no oracle of {op:?}");
    };
    match op {
        Relu(_) => Flex::relu(float(0)),
        ReluBackward(_) => Flex::relu_backward(float(0), float(1)),
        LeakyRelu(op) => Flex::leaky_relu(float(0), op.rhs.into()),
        PRelu(_) => Flex::prelu(float(0), float(1)),
        Gelu(_) => Flex::gelu(float(0)),
        GeluBackward(_) => Flex::gelu_backward(float(0), float(1)),
        Sigmoid(_) => Flex::sigmoid(float(0)),
        SigmoidBackward(_) => Flex::sigmoid_backward(float(0), float(1)),
        HardSigmoid(op) => Flex::hard_sigmoid(float(0), op.alpha.into(), op.beta.into()),
        LogSigmoid(_) => Flex::log_sigmoid(float(0)),
        LogSigmoidBackward(_) => Flex::log_sigmoid_backward(float(0), float(1)),
        Softmax(op) => Flex::softmax(float(0), op.axis),
        LogSoftmax(op) => Flex::log_softmax(float(0), op.axis),
        Softmin(op) => Flex::softmin(float(0), op.axis),
    }
}
