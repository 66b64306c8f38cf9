//! Activations: functions of single elements that burn-ir has no operation for.
//!
//! They travel as custom operations, so that a rank runs the function of its own backend. The id says which, and with
//! which parameters.

use std::str::FromStr;

use burn_backend::tensor::FloatTensor;

use super::family::prelude::*;
use super::pointwise::{self, mapped, pairwise};

const PREFIX: &str = "burn_dist.";

/// An activation, or the gradient of one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // Named after the functions of `ActivationOps`.
pub enum Activation {
    Relu,
    /// Takes the output and its gradient.
    ReluBackward,
    LeakyRelu {
        negative_slope: f64,
    },
    /// Takes the input and the slope of each channel.
    Prelu,
    Gelu,
    /// Takes the input and the gradient of the output.
    GeluBackward,
    Sigmoid,
    /// Takes the output and its gradient.
    SigmoidBackward,
    HardSigmoid {
        alpha: f64,
        beta: f64,
    },
    LogSigmoid,
    /// Takes the input and the gradient of the output.
    LogSigmoidBackward,
}

impl Activation {
    /// Returns the activation that an operation is.
    pub fn of(op: &OperationIr) -> Option<Self> {
        match op {
            OperationIr::Custom(op) => Self::parse(&op.id),
            _ => None,
        }
    }

    /// Returns the name of its function.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::ReluBackward => "relu_backward",
            Self::LeakyRelu { .. } => "leaky_relu",
            Self::Prelu => "prelu",
            Self::Gelu => "gelu",
            Self::GeluBackward => "gelu_backward",
            Self::Sigmoid => "sigmoid",
            Self::SigmoidBackward => "sigmoid_backward",
            Self::HardSigmoid { .. } => "hard_sigmoid",
            Self::LogSigmoid => "log_sigmoid",
            Self::LogSigmoidBackward => "log_sigmoid_backward",
        }
    }

    /// Returns the id of the custom operation that carries it.
    pub fn id(&self) -> String {
        let name = self.name();
        match self {
            Self::LeakyRelu { negative_slope } => format!("{PREFIX}{name};{negative_slope}"),
            Self::HardSigmoid { alpha, beta } => format!("{PREFIX}{name};{alpha};{beta}"),
            _ => format!("{PREFIX}{name}"),
        }
    }

    /// Reads an id back; `None` if it is not that of an activation.
    pub fn parse(id: &str) -> Option<Self> {
        let mut parts = id.strip_prefix(PREFIX)?.split(';');
        let name = parts.next()?;
        let mut number = || f64::from_str(parts.next()?).ok();
        Some(match name {
            "relu" => Self::Relu,
            "relu_backward" => Self::ReluBackward,
            "leaky_relu" => Self::LeakyRelu {
                negative_slope: number()?,
            },
            "prelu" => Self::Prelu,
            "gelu" => Self::Gelu,
            "gelu_backward" => Self::GeluBackward,
            "sigmoid" => Self::Sigmoid,
            "sigmoid_backward" => Self::SigmoidBackward,
            "hard_sigmoid" => Self::HardSigmoid {
                alpha: number()?,
                beta: number()?,
            },
            "log_sigmoid" => Self::LogSigmoid,
            "log_sigmoid_backward" => Self::LogSigmoidBackward,
            _ => return None,
        })
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back() {
        use Activation::*;
        let all = [
            Relu,
            ReluBackward,
            LeakyRelu {
                negative_slope: 0.01,
            },
            Prelu,
            Gelu,
            GeluBackward,
            Sigmoid,
            SigmoidBackward,
            HardSigmoid {
                alpha: 1.0 / 6.0,
                beta: 0.5,
            },
            LogSigmoid,
            LogSigmoidBackward,
        ];
        for activation in all {
            assert_eq!(Activation::parse(&activation.id()), Some(activation));
        }
        for other in [
            "burn_dist.param;w;-",
            "burn_dist.redistribute;[-]",
            "burn_dist.leaky_relu;steep",
            "burn_dist.hard_sigmoid;0.2",
            "relu",
        ] {
            assert_eq!(Activation::parse(other), None, "{other}");
        }
    }
}
