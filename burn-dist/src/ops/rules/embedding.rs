//! Embedding lookup and its backward.

use super::tensors::Tensors;
use super::{FactorKind, Lowering, OpRule};
use crate::mesh::ReduceOp;
use burn_dist_plan::rule::RuleBuilder;

/// `(weights, indices)`: split over the vocabulary `v`, each rank looks up the indices in its range.
pub(super) fn embedding(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "v d, ... -> ... d")
        .kind('v', FactorKind::Index)
        .linear()
        .lowering(Lowering::Special)
        .build()
}

/// `(weights, output_grad, indices)`: only the shape of the weights is read.
pub(super) fn backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "v d, ... d, ... -> v d")
        .kind('v', FactorKind::Index)
        .contract(ReduceOp::Sum)
        .shape_only(0)
        .lowering(Lowering::Special)
        .build()
}
