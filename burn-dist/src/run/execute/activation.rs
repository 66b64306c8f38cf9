//! Activations, run by the backend's own functions.

use super::{Context, Env};
use crate::ops::rules::Activation;
use burn_ir::{BackendIr, CustomOpIr};

/// Runs the activation that `op` carries.
pub(super) fn execute<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    activation: Activation,
    op: &CustomOpIr,
) {
    let mut inputs = op.inputs.iter();
    let mut next = || {
        let input = inputs.next().expect("recorded with all its inputs");
        cx.float(input)
    };
    let value = match activation {
        Activation::Relu => B::relu(next()),
        Activation::ReluBackward => B::relu_backward(next(), next()),
        Activation::LeakyRelu { negative_slope } => B::leaky_relu(next(), negative_slope.into()),
        Activation::Prelu => B::prelu(next(), next()),
        Activation::Gelu => B::gelu(next()),
        Activation::GeluBackward => B::gelu_backward(next(), next()),
        Activation::Sigmoid => B::sigmoid(next()),
        Activation::SigmoidBackward => B::sigmoid_backward(next(), next()),
        Activation::HardSigmoid { alpha, beta } => {
            B::hard_sigmoid(next(), alpha.into(), beta.into())
        }
        Activation::LogSigmoid => B::log_sigmoid(next()),
        Activation::LogSigmoidBackward => B::log_sigmoid_backward(next(), next()),
    };
    cx.put_float(&op.outputs[0], value);
}
