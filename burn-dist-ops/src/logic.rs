//! Operations on bools.

use super::family::prelude::*;
use super::formula::{map, pair};
use super::pointwise::{self, both, in_order};

family! {
    Logic |cx, op| {
        Not(UnaryOpIr) bool = B::bool_not(cx.bool(&op.input)),
        And(BinaryOpIr) bool = B::bool_and(cx.bool(&op.lhs), cx.bool(&op.rhs)),
        Or(BinaryOpIr) bool = B::bool_or(cx.bool(&op.lhs), cx.bool(&op.rhs)),
    }
}

impl Operation for Logic<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        pointwise::any(shapes)
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match self {
            Self::Not(_) => in_order(&inputs[0]),
            Self::And(_) | Self::Or(_) => both(inputs, shape),
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Not(op) => map(op, |x| x.unary(Unary::Not)),
            Self::And(op) => pair(op, |x, y| x.binary(Binary::And, y)),
            Self::Or(op) => pair(op, |x, y| x.binary(Binary::Or, y)),
        }
    }
}
