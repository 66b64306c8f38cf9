//! Ops that compute each element from the elements at the same place; dims of size one broadcast.

use super::OpRule;
use super::tensors::Tensors;
use burn_backend::DType;
use burn_dist_plan::rule::RuleBuilder;
use burn_ir::CastOpIr;

fn pointwise(tensors: &Tensors) -> RuleBuilder {
    RuleBuilder::uniform(tensors, "...").elementwise()
}

/// Any function of the elements: `exp`, `div` of ints, comparisons, `clamp`, ...
pub(super) fn any(tensors: &Tensors) -> OpRule {
    pointwise(tensors).build()
}

/// Linear in the first operand: `mul`, `mul_scalar`, `div` of floats.
pub(super) fn linear(tensors: &Tensors) -> OpRule {
    pointwise(tensors).linear().build()
}

/// Linear in both operands together: `add`, `sub`.
pub(super) fn joint_linear(tensors: &Tensors) -> OpRule {
    pointwise(tensors).joint_linear(&[0, 1]).build()
}

/// `mask_where(tensor, mask, value)`: linear in tensor and value together.
pub(super) fn mask_where(tensors: &Tensors) -> OpRule {
    pointwise(tensors).joint_linear(&[0, 2]).build()
}

/// A cast is linear if it keeps every value: rounding each term of a sum is not rounding the sum.
pub(super) fn cast(tensors: &Tensors, op: &CastOpIr) -> OpRule {
    let keeps_values = match (op.input.dtype, op.out.dtype) {
        (DType::F16 | DType::BF16, DType::F32 | DType::F64) => true,
        (DType::F32, DType::F64) => true,
        (from, to) => from == to,
    };
    match keeps_values {
        true => linear(tensors),
        false => any(tensors),
    }
}
