//! Common parts of operations that compute each element from the elements at the same index; dims of size one
//! broadcast.

use burn_dist_plan::rule::RuleBuilder;
use burn_dist_plan::storage::{Operand, Place, Strided};

use super::rules::{OpRule, Shapes};

fn pointwise(shapes: &Shapes<'_>) -> RuleBuilder {
    RuleBuilder::uniform(shapes, "...").elementwise()
}

/// Any function of the elements: `exp`, `div` of ints, comparisons, `clamp`, ...
pub(super) fn any(shapes: &Shapes<'_>) -> OpRule {
    pointwise(shapes).build()
}

/// Linear in the first operand: `mul`, `mul_scalar`, `div` of floats.
pub(super) fn linear(shapes: &Shapes<'_>) -> OpRule {
    pointwise(shapes).linear().build()
}

/// Linear in some operands together: `add`, `sub`.
pub(super) fn joint_linear(shapes: &Shapes<'_>, inputs: &[usize]) -> OpRule {
    pointwise(shapes).joint_linear(inputs).build()
}

/// A function of single elements, with a scalar.
pub(super) fn in_order(input: &Operand<'_>) -> Place {
    match input.alone && input.at.is_plain() {
        true => Place::Shares(0, input.at.clone()),
        false => Place::New(Strided::contiguous(&input.at.shape)),
    }
}

/// A function of single elements; of a permuted tensor it is permuted alike.
pub(super) fn mapped(input: &Operand<'_>) -> Place {
    let at = input.at;
    let fills = at.offset == 0
        && input.buffer == at.elements()
        && at.strides.iter().all(|stride| *stride >= 0);
    match input.alone && at.is_plain() {
        true => Place::Shares(0, at.clone()),
        false if fills => Place::New(at.clone()),
        false => Place::New(Strided::contiguous(&at.shape)),
    }
}

/// Reuses either operand, as [`pairwise`](super::places::pairwise) does.
pub(super) fn both(inputs: &[Operand<'_>], shape: &[usize]) -> Place {
    let new = Place::New(Strided::contiguous(shape));
    let [lhs, rhs, ..] = inputs else { return new };
    let (left, right) = (lhs.at.expanded(shape), rhs.at.expanded(shape));
    if !left.is_contiguous() || !right.is_contiguous() {
        return new;
    }
    if lhs.alone && left.offset == 0 {
        return Place::Shares(0, left);
    }
    match rhs.alone && right.offset == 0 {
        true => Place::Shares(1, right),
        false => new,
    }
}
