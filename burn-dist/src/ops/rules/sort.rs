//! Ops that need one dim whole because its elements depend on each other in order.

use super::OpRule;
use super::tensors::{Tensors, dims_but};
use burn_dist_plan::rule::{Name, RuleBuilder};
use burn_ir::{DimOpIr, ReduceDimWithIndicesOpIr};

/// `max_dim_with_indices`, `min_dim_with_indices`.
pub(super) fn with_indices(tensors: &Tensors, op: &ReduceDimWithIndicesOpIr) -> OpRule {
    let names = |tensor| dims_but(tensor, op.dim, Name::Whole);
    RuleBuilder::named(
        tensors,
        vec![names(&op.tensor)],
        vec![names(&op.out), names(&op.out_indices)],
    )
    .build()
}

fn along(tensors: &Tensors, op: &DimOpIr) -> RuleBuilder {
    let names = |tensor| dims_but(tensor, op.axis, Name::Whole);
    RuleBuilder::named(tensors, vec![names(&op.input)], vec![names(&op.out)])
}

/// `cumsum`.
pub(super) fn cumsum(tensors: &Tensors, op: &DimOpIr) -> OpRule {
    along(tensors, op).linear().build()
}

/// `cumprod`, `cummin`, `cummax`.
pub(super) fn cumulative(tensors: &Tensors, op: &DimOpIr) -> OpRule {
    along(tensors, op).build()
}
