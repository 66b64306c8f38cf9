//! Activations that work element by element, and custom operations of burn-ir, which the recorder refuses: none of
//! burn-dist's is one.

use super::curves;
use super::family::prelude::*;
use super::formula::{Value, formula, map, pair};
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

/// Returns `value` where `x` is positive or NaN, else zero.
fn if_positive<'s>(x: Value<'s>, value: Value<'s>) -> Value<'s> {
    let is_cut = x.compared(Binary::LessEqual, x.number(0.0));
    is_cut.select(value.number(0.0), value)
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

    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Relu(op) => map(op, |x| if_positive(x, x)),
            Self::ReluBackward(op) => pair(op, if_positive),
            Self::LeakyRelu(op) => formula([&op.lhs], &op.out, |sketch, [x]| {
                curves::leaky_relu(x, sketch.scalar(&op.rhs, x.wide().dtype))
            }),
            Self::PRelu(op) => pair(op, curves::leaky_relu),
            Self::Gelu(op) => map(op, curves::gelu),
            Self::GeluBackward(op) => pair(op, curves::gelu_backward),
            Self::Sigmoid(op) => map(op, curves::sigmoid),
            Self::SigmoidBackward(op) => pair(op, curves::sigmoid_backward),
            Self::HardSigmoid(op) => formula([&op.tensor], &op.out, |sketch, [x]| {
                let scalars = [&op.alpha, &op.beta];
                let [alpha, beta] = scalars.map(|of| sketch.scalar(of, x.wide().dtype));
                curves::hard_sigmoid(x, alpha, beta)
            }),
            Self::LogSigmoid(op) => map(op, curves::log_sigmoid),
            Self::LogSigmoidBackward(op) => pair(op, curves::log_sigmoid_backward),
            Self::Custom(_) => None,
        }
    }
}
