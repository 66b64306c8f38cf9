//! Activations: functions of single elements that burn-ir 0.21 has no operation for, which travel as custom operations
//! ([`Activation`]).

use burn_backend::tensor::FloatTensor;
use burn_dist_door::Activation;

use super::curves;
use super::family::prelude::*;
use super::formula::{Value, formula};
use super::places::pairwise;
use super::pointwise::{self, mapped};

family! {
    Activated |cx, op| {
        /// A custom operation of burn-ir; the recorder refuses those that are no activations.
        Custom(CustomOpIr) _ = {
            let Some(activation) = Activation::parse(&op.id) else {
                return Err(ExecuteError::Unsupported {
                    op: op.id.clone(),
                    reason: "it is a custom op, which must be run by the code that records it",
                });
            };
            let value = run(activation, &op.inputs, cx);
            cx.put_float(&op.outputs[0], value);
        },
    }
}

/// Returns `value` where `x` is positive, else zero: where it is NaN too, as Flex 0.21 has it.
fn if_positive<'s>(x: Value<'s>, value: Value<'s>) -> Value<'s> {
    let is_positive = x.compared(Binary::Greater, x.number(0.0));
    is_positive.select(value, value.number(0.0))
}

impl Activated<'_> {
    fn is_known(&self) -> bool {
        let Self::Custom(op) = self;
        Activation::parse(&op.id).is_some()
    }
}

impl Operation for Activated<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self.is_known() {
            true => pointwise::any(shapes),
            false => replicated("custom"),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self.is_known() {
            true => FloatClass::Follow,
            false => FloatClass::Recorded,
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match self.is_known() {
            true if inputs.len() == 1 => mapped(&inputs[0]),
            true => pairwise(inputs, shape, false),
            false => Place::New(Strided::contiguous(shape)),
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        let Self::Custom(op) = self;
        let (inputs, out) = (&op.inputs[..], &op.outputs[0]);
        match Activation::parse(&op.id)? {
            Activation::Relu => map(inputs, out, |x| if_positive(x, x)),
            Activation::ReluBackward => pair(inputs, out, if_positive),
            Activation::LeakyRelu { negative_slope } => map(inputs, out, |x| {
                curves::leaky_relu(x, x.wide().number(negative_slope))
            }),
            Activation::Prelu => pair(inputs, out, curves::leaky_relu),
            Activation::Gelu => map(inputs, out, curves::gelu),
            Activation::GeluBackward => pair(inputs, out, curves::gelu_backward),
            Activation::Sigmoid => map(inputs, out, curves::sigmoid),
            Activation::SigmoidBackward => pair(inputs, out, curves::sigmoid_backward),
            Activation::HardSigmoid { alpha, beta } => map(inputs, out, |x| {
                let [alpha, beta] = [alpha, beta].map(|number| x.wide().number(number));
                curves::hard_sigmoid(x, alpha, beta)
            }),
            Activation::LogSigmoid => map(inputs, out, curves::log_sigmoid),
            Activation::LogSigmoidBackward => pair(inputs, out, curves::log_sigmoid_backward),
        }
    }
}

/// Runs the backend's own function.
fn run<B: BackendIr, E: Env<B>>(
    activation: Activation,
    inputs: &[TensorIr],
    cx: &mut Context<'_, B, E>,
) -> FloatTensor<B> {
    let mut inputs = inputs.iter();
    let mut next = || cx.float(inputs.next().expect("recorded with all its inputs"));
    match activation {
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
    }
}

/// Returns the formula of an activation of one input.
fn map(
    inputs: &[TensorIr],
    out: &TensorIr,
    compute: impl for<'s> Fn(Value<'s>) -> Value<'s>,
) -> Option<Pointwise> {
    formula([&inputs[0]], out, |_, [x]| compute(x))
}

/// Returns the formula of an activation of two inputs.
fn pair(
    inputs: &[TensorIr],
    out: &TensorIr,
    compute: impl for<'s> Fn(Value<'s>, Value<'s>) -> Value<'s>,
) -> Option<Pointwise> {
    formula([&inputs[0], &inputs[1]], out, |_, [x, y]| compute(x, y))
}
