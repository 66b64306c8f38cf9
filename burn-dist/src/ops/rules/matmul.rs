//! Products of matrices and of vectors.

use super::OpRule;
use super::tensors::{Tensors, dims_but};
use crate::mesh::ReduceOp;
use burn_dist_plan::rule::{Name, RuleBuilder};
use burn_ir::CrossOpIr;

/// Batched matrix product; batch dims broadcast.
pub(super) fn matmul(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "... i k, ... k j -> ... i j")
        .broadcast()
        .contract(ReduceOp::Sum)
        .linear()
        .build()
}

/// Cross product: the three components stay together.
pub(super) fn cross(tensors: &Tensors, op: &CrossOpIr) -> OpRule {
    let names = |tensor| dims_but(tensor, op.dim, Name::Whole);
    RuleBuilder::named(
        tensors,
        vec![names(&op.lhs), names(&op.rhs)],
        vec![names(&op.out)],
    )
    .broadcast()
    .build()
}
