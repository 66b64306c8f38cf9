//! Activations: functions of single elements that burn-ir has no operation for.
//!
//! They travel as custom operations, so that a rank runs the function of its own backend. The id says which, and with
//! which parameters.

use std::str::FromStr;

use burn_ir::OperationIr;

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
