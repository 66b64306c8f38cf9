//! The linear module and its three backwards. `weight` is `[i, o]`.

use super::tensors::Tensors;
use super::{Lowering, OpRule};
use crate::mesh::ReduceOp;
use burn_dist_plan::rule::RuleBuilder;

/// `x[..., i] · weight[i, o] (+ bias[o])`. If `i` is split, the first member of the group adds the bias.
pub(super) fn linear(tensors: &Tensors) -> OpRule {
    let notation = match tensors.inputs.len() {
        2 => "... i, i o -> ... o",
        _ => "... i, i o, o -> ... o",
    };
    RuleBuilder::notation(tensors, notation)
        .contract(ReduceOp::Sum)
        .linear()
        .lowering(Lowering::Special)
        .build()
}

/// `(weight, output_grad)`.
pub(super) fn x_backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "i o, ... o -> ... i")
        .contract(ReduceOp::Sum)
        .build()
}

/// `(x, output_grad)`.
pub(super) fn weight_backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "... i, ... o -> i o")
        .contract(ReduceOp::Sum)
        .build()
}

/// `(output_grad)`.
pub(super) fn bias_backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "... o -> o")
        .contract(ReduceOp::Sum)
        .linear()
        .build()
}
