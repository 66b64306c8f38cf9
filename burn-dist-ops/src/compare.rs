//! Comparisons, which make bools of the type that was recorded.

use super::family::prelude::*;
use super::formula::{compared, compared_elem};
use super::pointwise;

/// Compares two tensors of floats or of ints.
macro_rules! compare {
    ($cx:ident, $op:ident, $float:path, $int:path) => {
        match $cx.kind {
            Kind::Int => $int($cx.int(&$op.lhs), $cx.int(&$op.rhs), $op.out.dtype.into()),
            _ => $float(
                $cx.float(&$op.lhs),
                $cx.float(&$op.rhs),
                $op.out.dtype.into(),
            ),
        }
    };
}

/// Compares a tensor of floats or of ints with a number.
macro_rules! compare_elem {
    ($cx:ident, $op:ident, $float:path, $int:path) => {
        match $cx.kind {
            Kind::Int => $int(
                $cx.int(&$op.lhs),
                $cx.scalar(&$op.rhs),
                $op.out.dtype.into(),
            ),
            _ => $float(
                $cx.float(&$op.lhs),
                $cx.scalar(&$op.rhs),
                $op.out.dtype.into(),
            ),
        }
    };
}

family! {
    Compare |cx, op| {
        Equal(BinaryOpIr) bool = match cx.kind {
            Kind::Bool => B::bool_equal(cx.bool(&op.lhs), cx.bool(&op.rhs)),
            _ => compare!(cx, op, B::float_equal, B::int_equal),
        },
        EqualElem(ScalarOpIr) bool = match cx.kind {
            Kind::Bool => B::bool_equal_elem(cx.bool(&op.lhs), cx.scalar(&op.rhs)),
            _ => compare_elem!(cx, op, B::float_equal_elem, B::int_equal_elem),
        },
        Greater(BinaryOpIr) bool = compare!(cx, op, B::float_greater, B::int_greater),
        GreaterElem(ScalarOpIr) bool = compare_elem!(cx, op, B::float_greater_elem, B::int_greater_elem),
        GreaterEqual(BinaryOpIr) bool = compare!(cx, op, B::float_greater_equal, B::int_greater_equal),
        GreaterEqualElem(ScalarOpIr) bool =
            compare_elem!(cx, op, B::float_greater_equal_elem, B::int_greater_equal_elem),
        Lower(BinaryOpIr) bool = compare!(cx, op, B::float_lower, B::int_lower),
        LowerElem(ScalarOpIr) bool = compare_elem!(cx, op, B::float_lower_elem, B::int_lower_elem),
        LowerEqual(BinaryOpIr) bool = compare!(cx, op, B::float_lower_equal, B::int_lower_equal),
        LowerEqualElem(ScalarOpIr) bool =
            compare_elem!(cx, op, B::float_lower_equal_elem, B::int_lower_equal_elem),
    }
}

impl Operation for Compare<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        pointwise::any(shapes)
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Follow
    }

    fn pointwise(&self) -> Option<Pointwise> {
        use Compare::*;
        match self {
            Equal(op) => compared(op, Binary::Equal),
            EqualElem(op) => compared_elem(op, Binary::Equal),
            Greater(op) => compared(op, Binary::Greater),
            GreaterElem(op) => compared_elem(op, Binary::Greater),
            GreaterEqual(op) => compared(op, Binary::GreaterEqual),
            GreaterEqualElem(op) => compared_elem(op, Binary::GreaterEqual),
            Lower(op) => compared(op, Binary::Less),
            LowerElem(op) => compared_elem(op, Binary::Less),
            LowerEqual(op) => compared(op, Binary::LessEqual),
            LowerEqualElem(op) => compared_elem(op, Binary::LessEqual),
        }
    }
}
