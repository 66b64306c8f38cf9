//! Convolutions: batch `b`, input channels `c`, output channels `o`; space stays whole.
//!
//! With groups, channels belong together in ways that a split would have to respect: then only the batch is split. If a
//! sum over input channels is split, the first member of the group adds the bias.

use super::tensors::Tensors;
use super::{FactorKind, Lowering, OpRule};
use crate::mesh::ReduceOp;
use burn_dist_plan::rule::RuleBuilder;
use burn_ir::{DeformConv2dBackwardOpIr, DeformConv2dOpIr, TensorIr};

/// Keeps channels whole if there are groups, and sums over the rest that the outputs lack.
fn grouped(rule: RuleBuilder, groups: usize) -> RuleBuilder {
    let rule = rule.contract(ReduceOp::Sum);
    match groups {
        1 => rule,
        _ => rule
            .kind('c', FactorKind::Whole)
            .kind('o', FactorKind::Whole),
    }
}

/// `conv1d`, `conv2d`, `conv3d`: `(x, weight, bias?)`.
pub(super) fn conv(tensors: &Tensors, groups: usize) -> OpRule {
    let notation = match tensors.inputs.len() {
        2 => "b c *, o c * -> b o *",
        _ => "b c *, o c *, o -> b o *",
    };
    grouped(RuleBuilder::notation(tensors, notation), groups)
        .linear()
        .lowering(Lowering::Special)
        .build()
}

/// `conv_transpose1d`, `conv_transpose2d`, `conv_transpose3d`: `(x, weight, bias?)`.
pub(super) fn transpose(tensors: &Tensors, groups: usize) -> OpRule {
    let notation = match tensors.inputs.len() {
        2 => "b c *, c o * -> b o *",
        _ => "b c *, c o *, o -> b o *",
    };
    grouped(RuleBuilder::notation(tensors, notation), groups)
        .linear()
        .lowering(Lowering::Special)
        .build()
}

/// `(x, weight, output_grad)`; only the shape of `x` is read.
pub(super) fn x_backward(tensors: &Tensors, groups: usize) -> OpRule {
    let rule = RuleBuilder::notation(tensors, "b c *, o c *, b o * -> b c *");
    grouped(rule, groups).shape_only(0).build()
}

/// `(x, weight, output_grad)`; only the shape of `weight` is read.
pub(super) fn weight_backward(tensors: &Tensors, groups: usize) -> OpRule {
    let rule = RuleBuilder::notation(tensors, "b c *, o c *, b o * -> o c *");
    grouped(rule, groups).shape_only(1).build()
}

/// `(x, bias, output_grad)`; only the shapes of `x` and `bias` are read.
pub(super) fn bias_backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "b *, o, b o ... -> o")
        .contract(ReduceOp::Sum)
        .shape_only(0)
        .shape_only(1)
        .build()
}

/// `(x, offset, weight, mask?, bias?)`. All input channels share the offsets if there is one offset group.
pub(super) fn deform(tensors: &Tensors, op: &DeformConv2dOpIr) -> OpRule {
    let groups = op.options.weight_groups.max(op.options.offset_groups);
    let notation = format!("b c *, b *, o c *{} -> b o *", optional(&op.mask, &op.bias));
    grouped(RuleBuilder::notation(tensors, &notation), groups)
        .lowering(Lowering::Special)
        .build()
}

/// `(x, offset, weight, output_grad, mask?, bias?)`. Some gradients have a factor, others are sums over it. The
/// gradient of the bias does not depend on the input channels at all, so they stay whole.
pub(super) fn deform_backward(tensors: &Tensors, op: &DeformConv2dBackwardOpIr) -> OpRule {
    let groups = op.options.weight_groups.max(op.options.offset_groups);
    let grads = optional(&op.mask_grad, &op.bias_grad);
    let notation = format!(
        "b c *, b *, o c *, b o *{} -> b c *, b *, o c *{grads}",
        optional(&op.mask, &op.bias)
    );
    let o = match groups {
        1 => FactorKind::Reduce(ReduceOp::Sum),
        _ => FactorKind::Whole,
    };
    RuleBuilder::notation(tensors, &notation)
        .kind('b', FactorKind::Reduce(ReduceOp::Sum))
        .kind('o', o)
        .kind('c', FactorKind::Whole)
        .build()
}

fn optional(mask: &Option<TensorIr>, bias: &Option<TensorIr>) -> String {
    let mask = mask.as_ref().map_or("", |_| ", b *");
    let bias = bias.as_ref().map_or("", |_| ", o");
    format!("{mask}{bias}")
}
