//! What an operation costs: floating-point operations, counted as the papers do.
//!
//! | operation | flops |
//! | --- | --- |
//! | products | as [`Op::product_flops`] says |
//! | views, and what is made from nothing | 0 |
//! | what writes over a part of its operand | one per element written |
//! | everything else | one per element of the results |

use crate::ir::{Op, Tensor};
use crate::rule::{OpRule, PartialRule};

/// A count of flops as data: equal if it is so bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Flops(u64);

impl Flops {
    /// Returns the count.
    pub(crate) fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for Flops {
    fn from(count: f64) -> Self {
        Self(count.to_bits())
    }
}

/// Returns whether an operation is a product: what models spend their time on.
pub(crate) fn is_product<O: Op>(op: &O) -> bool {
    op.product_flops().is_some()
}

/// Returns the flops of an operation with the shapes that it has; see the module.
pub fn flops<O: Op>(op: &O, rule: &OpRule) -> f64 {
    if let Some(flops) = op.product_flops() {
        return flops;
    }
    let numel = |tensor: Tensor<'_>| tensor.numel() as f64;
    match rule {
        OpRule::Reshape | OpRule::Create => 0.0,
        OpRule::Factors(rule) if rule.partial == PartialRule::Move => 0.0,
        // In place: what is assigned.
        _ if op.traits().assigns => op.inputs().nth(1).map_or(0.0, numel),
        _ => op.outputs().map(numel).sum(),
    }
}
