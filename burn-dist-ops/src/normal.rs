//! Normalisations: every element is divided by what the others along its dims add up to. Those dims stay whole.
//!
//! Where means and variances are inputs, a batch is normalised element by element, so there all dims may be split.

use super::family::prelude::*;
use super::formula::{Value, formula, is_last};
use super::pointwise::in_order;

family! {
    Normal |cx, op| {
        Softmax(DimOpIr) float = B::softmax(cx.float(&op.input), op.axis),
        LogSoftmax(DimOpIr) float = B::log_softmax(cx.float(&op.input), op.axis),
        Softmin(DimOpIr) float = B::softmin(cx.float(&op.input), op.axis),
        /// `(input, gamma, beta?)`, over the last dim.
        LayerNorm(LayerNormOpIr) float = {
            let epsilon = cx.scalar(&op.epsilon).elem();
            B::layer_norm(cx.float(&op.input), cx.float(&op.gamma), cx.float_if(&op.beta), epsilon)
        },
        /// `(x, gamma, beta, mean, variance)`, each but `x` with one number for a channel.
        BatchNorm(BatchNormOpIr) float = {
            let epsilon = cx.scalar(&op.epsilon).elem();
            B::batch_norm(
                cx.float(&op.x),
                cx.float(&op.gamma),
                cx.float(&op.beta),
                cx.float(&op.mean),
                cx.float(&op.variance),
                epsilon,
            )
        },
    }
}

impl Operation for Normal<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Softmax(op) | Self::LogSoftmax(op) | Self::Softmin(op) => {
                let names = dims_but(&op.input, op.axis, Name::Whole);
                RuleBuilder::named(shapes, vec![names.clone()], vec![names])
            }
            Self::LayerNorm(op) if op.beta.is_none() => {
                RuleBuilder::notation(shapes, "... -, - -> ... -")
            }
            Self::LayerNorm(_) => RuleBuilder::notation(shapes, "... -, -, - -> ... -"),
            Self::BatchNorm(op) => {
                let x = dims(&op.x);
                let channel = vec![x[1]];
                let inputs = [vec![x.clone()], vec![channel; 4]].concat();
                RuleBuilder::named(shapes, inputs, vec![x])
            }
        }
        .build()
    }

    /// Sums over a dim lose too much in 16 bits, and exponentials do.
    fn float_class(&self) -> FloatClass {
        FloatClass::Single
    }

    /// The others are composed of differences, which overwrite their left operand.
    fn makes(&self) -> bool {
        matches!(
            self,
            Self::Softmax(_) | Self::Softmin(_) | Self::LayerNorm(_)
        )
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        let last = shape.len().saturating_sub(1);
        match self {
            Self::LogSoftmax(_) | Self::BatchNorm(_) => in_order(&inputs[0]),
            // The dim is made the last one, and its rows stay together.
            Self::Softmax(op) | Self::Softmin(op) => {
                let swapped = |dim| match dim {
                    dim if dim == op.axis => last,
                    dim if dim == last => op.axis,
                    dim => dim,
                };
                let rows: Vec<usize> = (0..shape.len()).map(|dim| shape[swapped(dim)]).collect();
                let dims = (0..shape.len()).map(swapped);
                Place::New(Strided::contiguous(&rows).permuted(dims))
            }
            Self::LayerNorm(_) => Place::New(Strided::contiguous(shape)),
        }
    }

    /// There is none along another dim than the last.
    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Softmax(op) if is_last(&op.input, op.axis) => {
                formula([&op.input], &op.out, |_, [x]| softmax(x))
            }
            Self::Softmin(op) if is_last(&op.input, op.axis) => {
                formula([&op.input], &op.out, |_, [x]| softmax(-x))
            }
            Self::LogSoftmax(op) if is_last(&op.input, op.axis) => {
                formula([&op.input], &op.out, |_, [x]| log_softmax(x))
            }
            Self::Softmax(_) | Self::Softmin(_) | Self::LogSoftmax(_) => None,
            Self::LayerNorm(op) => match &op.beta {
                Some(beta) => {
                    let operands = [&op.input, &op.gamma, beta];
                    formula(operands, &op.out, |sketch, [x, gamma, beta]| {
                        let epsilon = sketch.scalar(&op.epsilon, x.wide().dtype);
                        normalized(x, &op.input, epsilon) * gamma.wide() + beta.wide()
                    })
                }
                None => formula([&op.input, &op.gamma], &op.out, |sketch, [x, gamma]| {
                    let epsilon = sketch.scalar(&op.epsilon, x.wide().dtype);
                    normalized(x, &op.input, epsilon) * gamma.wide()
                }),
            },
            Self::BatchNorm(op) if is_last(&op.x, 1) => {
                let operands = [&op.x, &op.gamma, &op.beta, &op.mean, &op.variance];
                formula(
                    operands,
                    &op.out,
                    |sketch, [x, gamma, beta, mean, variance]| {
                        let epsilon = sketch.arithmetic_scalar(&op.epsilon, x.dtype);
                        (x - mean) / (variance + epsilon).unary(Unary::Sqrt) * gamma + beta
                    },
                )
            }
            Self::BatchNorm(_) => None,
        }
    }
}

/// Returns the exponentials of a row over their sum; those of 16 bits are rounded before they are divided.
fn softmax(x: Value<'_>) -> Value<'_> {
    let of = x.wide();
    let exponentials = (of - of.fold(Fold::Max)).exp();
    let per_sum = exponentials.fold(Fold::Sum).unary(Unary::Recip);
    exponentials.to(x.dtype).wide() * per_sum
}

/// Returns the logarithms of [`softmax`], one operation after the other.
fn log_softmax(x: Value<'_>) -> Value<'_> {
    let shifted = x - x.fold(Fold::Max);
    let sum = shifted.exp().sum().to(x.dtype);
    shifted - sum.unary(Unary::Log)
}

/// Returns a row about its mean, in its standard deviations.
fn normalized<'s>(x: Value<'s>, of: &TensorIr, epsilon: Value<'s>) -> Value<'s> {
    let x = x.wide();
    let about = x - x.mean(of);
    about
        * ((about * about).mean(of) + epsilon)
            .unary(Unary::Sqrt)
            .unary(Unary::Recip)
}
