//! Reductions of all dims (to shape `[1]`) and of one dim (which stays, with size one).

use super::tensors::{Tensors, dims, dims_but};
use super::{Lowering, OpRule, replicated};
use crate::mesh::ReduceOp;
use burn_dist_plan::rule::{Name, RuleBuilder};
use burn_ir::{ReduceDimOpIr, ReduceOpIr};

fn all(tensors: &Tensors, op: &ReduceOpIr, by: ReduceOp) -> RuleBuilder {
    RuleBuilder::named(tensors, vec![dims(&op.input)], vec![vec![Name::Whole]]).contract(by)
}

fn one(tensors: &Tensors, op: &ReduceDimOpIr, by: ReduceOp) -> RuleBuilder {
    let out = dims_but(&op.out, op.axis, Name::Whole);
    RuleBuilder::named(tensors, vec![dims(&op.input)], vec![out]).contract(by)
}

/// `sum`.
pub(super) fn sum(tensors: &Tensors, op: &ReduceOpIr) -> OpRule {
    all(tensors, op, ReduceOp::Sum).linear().build()
}

/// `sum_dim`.
pub(super) fn sum_dim(tensors: &Tensors, op: &ReduceDimOpIr) -> OpRule {
    one(tensors, op, ReduceOp::Sum).linear().build()
}

/// `mean` of floats; ints round towards zero, which a sum of shares does not.
pub(super) fn mean(tensors: &Tensors, op: &ReduceOpIr) -> OpRule {
    if !op.input.dtype.is_float() {
        return replicated::rule("mean");
    }
    all(tensors, op, ReduceOp::Sum)
        .linear()
        .lowering(Lowering::MeanAsSum)
        .build()
}

/// `mean_dim`; of ints, the dim stays whole.
pub(super) fn mean_dim(tensors: &Tensors, op: &ReduceDimOpIr) -> OpRule {
    if !op.input.dtype.is_float() {
        return along(tensors, op);
    }
    one(tensors, op, ReduceOp::Sum)
        .linear()
        .lowering(Lowering::MeanAsSum)
        .build()
}

/// `max`, `min`, `prod`, `max_abs`: the terms combine by `by`.
pub(super) fn extremum(tensors: &Tensors, op: &ReduceOpIr, by: ReduceOp) -> OpRule {
    all(tensors, op, by).build()
}

/// As [`extremum`], of one dim.
pub(super) fn extremum_dim(tensors: &Tensors, op: &ReduceDimOpIr, by: ReduceOp) -> OpRule {
    one(tensors, op, by).build()
}

/// Reductions that need the dim whole: `argmax`, `argmin`, `topk`, `argtopk`.
pub(super) fn along(tensors: &Tensors, op: &ReduceDimOpIr) -> OpRule {
    let names = |tensor| dims_but(tensor, op.axis, Name::Whole);
    RuleBuilder::named(tensors, vec![names(&op.input)], vec![names(&op.out)]).build()
}
