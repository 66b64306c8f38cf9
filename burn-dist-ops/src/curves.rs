//! Formulas of activations and their gradients, for both lines of Burn: as Flex computes them, of 16-bit floats in f32.

use std::f64::consts::{PI, SQRT_2};

use burn_dist_plan::region::{Binary, Unary};

use super::formula::Value;

/// Returns `x`, times a slope where it is negative or NaN.
pub(super) fn leaky_relu<'s>(x: Value<'s>, slope: Value<'s>) -> Value<'s> {
    let (x, slope) = (x.wide(), slope.wide());
    let is_kept = x.compared(Binary::GreaterEqual, x.number(0.0));
    is_kept.select(x, slope * x)
}

/// Returns `x` times the probability of a normal value below it.
pub(super) fn gelu(x: Value<'_>) -> Value<'_> {
    let x = x.wide();
    0.5 * x * (1.0 + (x / SQRT_2).unary(Unary::Erf))
}

/// Returns the gradient of the input of [`gelu`].
pub(super) fn gelu_backward<'s>(x: Value<'s>, gradient: Value<'s>) -> Value<'s> {
    let (x, gradient) = (x.wide(), gradient.wide());
    let below = 0.5 * (1.0 + (x / SQRT_2).unary(Unary::Erf));
    let density = (1.0 / (2.0 * PI).sqrt()) * (-0.5 * x * x).exp();
    gradient * (below + x * density)
}

/// Returns the logistic function.
pub(super) fn sigmoid(x: Value<'_>) -> Value<'_> {
    x.unary(Unary::Sigmoid)
}

/// Returns the gradient of the input of [`sigmoid`], from its output.
pub(super) fn sigmoid_backward<'s>(out: Value<'s>, gradient: Value<'s>) -> Value<'s> {
    let (out, gradient) = (out.wide(), gradient.wide());
    gradient * out * (1.0 - out)
}

/// Returns a line between zero and one; scalars are those of the type in which it is computed.
pub(super) fn hard_sigmoid<'s>(x: Value<'s>, alpha: Value<'s>, beta: Value<'s>) -> Value<'s> {
    let line = alpha * x.wide() + beta;
    let low = line.at_least(line.number(0.0));
    low.at_most(line.number(1.0))
}

/// Returns the logarithm of the logistic function, without exponentials that overflow.
pub(super) fn log_sigmoid(x: Value<'_>) -> Value<'_> {
    let x = x.wide();
    // Exponentials of what is not positive alone.
    let small = x.abs();
    let rest = (-small).exp().log1p();
    let is_negative = x.compared(Binary::Less, x.number(0.0));
    is_negative.select(x - rest, -rest)
}

/// Returns the gradient of the input of [`log_sigmoid`].
pub(super) fn log_sigmoid_backward<'s>(x: Value<'s>, gradient: Value<'s>) -> Value<'s> {
    let (x, gradient) = (x.wide(), gradient.wide());
    gradient * sigmoid(-x)
}
