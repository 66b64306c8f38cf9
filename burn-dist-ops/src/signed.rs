//! Arithmetic that Burn 0.21 composes of others: signs, bounds on one side, and the length of a vector of two.

use super::family::prelude::*;
use super::formula::{formula, map};
use super::places::pairwise;
use super::pointwise::{self, in_order, mapped};

/// Runs a kernel that floats and ints have, with a bound if there is one.
macro_rules! signed {
    ($cx:ident, $op:ident, $input:ident, $float:path, $int:path $(, $bound:expr)?) => {
        match $cx.kind {
            Kind::Int => {
                let made = $int($cx.int(&$op.$input) $(, $bound)?);
                $cx.put_int(&$op.out, made)
            }
            _ => {
                let made = $float($cx.float(&$op.$input) $(, $bound)?);
                $cx.put_float(&$op.out, made)
            }
        }
    };
}

family! {
    Signed |cx, op| {
        Neg(UnaryOpIr) _ = signed!(cx, op, input, B::float_neg, B::int_neg),
        Sign(UnaryOpIr) _ = signed!(cx, op, input, B::float_sign, B::int_sign),
        ClampMin(ScalarOpIr) _ = {
            let min = cx.scalar(&op.rhs);
            signed!(cx, op, lhs, B::float_clamp_min, B::int_clamp_min, min)
        },
        ClampMax(ScalarOpIr) _ = {
            let max = cx.scalar(&op.rhs);
            signed!(cx, op, lhs, B::float_clamp_max, B::int_clamp_max, max)
        },
        /// Floats alone have it.
        Hypot(BinaryOpIr) float = B::float_hypot(cx.float(&op.lhs), cx.float(&op.rhs)),
    }
}

impl Operation for Signed<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Neg(_) => pointwise::linear(shapes),
            _ => pointwise::any(shapes),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Hypot(_) => FloatClass::Single,
            _ => FloatClass::Follow,
        }
    }

    fn place(&self, kind: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match (self, kind) {
            (Self::Hypot(_), _) => pairwise(inputs, shape, false),
            (_, Kind::Float) => mapped(&inputs[0]),
            _ => in_order(&inputs[0]),
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Neg(op) => map(op, |x| -x),
            Self::Sign(op) => map(op, |x| x.unary(Unary::Sign)),
            Self::ClampMin(op) => formula([&op.lhs], &op.out, |sketch, [x]| {
                let x = x.bounded();
                sketch.scalar(&op.rhs, x.dtype).at_least(x)
            }),
            Self::ClampMax(op) => formula([&op.lhs], &op.out, |sketch, [x]| {
                let x = x.bounded();
                sketch.scalar(&op.rhs, x.dtype).at_most(x)
            }),
            // The library's, which formulas do not have.
            Self::Hypot(_) => None,
        }
    }
}
