//! Activations that work element by element, and custom operations of burn-ir, which the recorder refuses: none of
//! burn-dist's is one.

use super::family::prelude::*;
use super::places::pairwise;
use super::pointwise::{self, mapped};

family! {
    Activated |cx, op| {
        Relu(UnaryOpIr) float = B::relu(cx.float(&op.input)),
        /// `(output, gradient)`.
        ReluBackward(BinaryOpIr) float = B::relu_backward(cx.float(&op.lhs), cx.float(&op.rhs)),
        LeakyRelu(ScalarOpIr) float = B::leaky_relu(cx.float(&op.lhs), cx.scalar(&op.rhs)),
        /// `(input, slopes)`; the slopes stretch over the input.
        PRelu(BinaryOpIr) float = B::prelu(cx.float(&op.lhs), cx.float(&op.rhs)),
        Gelu(UnaryOpIr) float = B::gelu(cx.float(&op.input)),
        /// `(input, gradient)`.
        GeluBackward(BinaryOpIr) float = B::gelu_backward(cx.float(&op.lhs), cx.float(&op.rhs)),
        Sigmoid(UnaryOpIr) float = B::sigmoid(cx.float(&op.input)),
        /// `(output, gradient)`.
        SigmoidBackward(BinaryOpIr) float = B::sigmoid_backward(cx.float(&op.lhs), cx.float(&op.rhs)),
        HardSigmoid(HardSigmoidOpIr) float =
            B::hard_sigmoid(cx.float(&op.tensor), cx.scalar(&op.alpha), cx.scalar(&op.beta)),
        LogSigmoid(UnaryOpIr) float = B::log_sigmoid(cx.float(&op.input)),
        /// `(input, gradient)`.
        LogSigmoidBackward(BinaryOpIr) float =
            B::log_sigmoid_backward(cx.float(&op.lhs), cx.float(&op.rhs)),
        /// A custom operation of burn-ir.
        Custom(CustomOpIr) _ = {
            return Err(ExecuteError::Unsupported {
                op: op.id.clone(),
                reason: "it is a custom op, which must be run by the code that records it",
            });
        },
    }
}

impl Operation for Activated<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Custom(_) => replicated("custom"),
            _ => pointwise::any(shapes),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Custom(_) => FloatClass::Recorded,
            _ => FloatClass::Follow,
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match self {
            Self::Custom(_) => Place::New(Strided::contiguous(shape)),
            _ if inputs.len() == 1 => mapped(&inputs[0]),
            _ => pairwise(inputs, shape, false),
        }
    }
}
