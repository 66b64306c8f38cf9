//! Operations on the bits of ints.

use super::family::prelude::*;
use super::formula::{map, pair, with_scalar};
use super::pointwise;

family! {
    Bits |cx, op| {
        BitwiseAnd(BinaryOpIr) int = B::bitwise_and(cx.int(&op.lhs), cx.int(&op.rhs)),
        BitwiseAndScalar(ScalarOpIr) int = B::bitwise_and_scalar(cx.int(&op.lhs), cx.scalar(&op.rhs)),
        BitwiseOr(BinaryOpIr) int = B::bitwise_or(cx.int(&op.lhs), cx.int(&op.rhs)),
        BitwiseOrScalar(ScalarOpIr) int = B::bitwise_or_scalar(cx.int(&op.lhs), cx.scalar(&op.rhs)),
        BitwiseXor(BinaryOpIr) int = B::bitwise_xor(cx.int(&op.lhs), cx.int(&op.rhs)),
        BitwiseXorScalar(ScalarOpIr) int = B::bitwise_xor_scalar(cx.int(&op.lhs), cx.scalar(&op.rhs)),
        BitwiseLeftShift(BinaryOpIr) int = B::bitwise_left_shift(cx.int(&op.lhs), cx.int(&op.rhs)),
        BitwiseLeftShiftScalar(ScalarOpIr) int =
            B::bitwise_left_shift_scalar(cx.int(&op.lhs), cx.scalar(&op.rhs)),
        BitwiseRightShift(BinaryOpIr) int = B::bitwise_right_shift(cx.int(&op.lhs), cx.int(&op.rhs)),
        BitwiseRightShiftScalar(ScalarOpIr) int =
            B::bitwise_right_shift_scalar(cx.int(&op.lhs), cx.scalar(&op.rhs)),
        BitwiseNot(UnaryOpIr) int = B::bitwise_not(cx.int(&op.input)),
    }
}

impl Operation for Bits<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        pointwise::any(shapes)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        use Bits::*;
        let with = |op: &ScalarOpIr, function| with_scalar(op, |x, y| x.binary(function, y));
        let both = |op: &BinaryOpIr, function| pair(op, |x, y| x.binary(function, y));
        match self {
            BitwiseAnd(op) => both(op, Binary::And),
            BitwiseAndScalar(op) => with(op, Binary::And),
            BitwiseOr(op) => both(op, Binary::Or),
            BitwiseOrScalar(op) => with(op, Binary::Or),
            BitwiseXor(op) => both(op, Binary::Xor),
            BitwiseXorScalar(op) => with(op, Binary::Xor),
            BitwiseLeftShift(op) => both(op, Binary::ShiftLeft),
            BitwiseLeftShiftScalar(op) => with(op, Binary::ShiftLeft),
            BitwiseRightShift(op) => both(op, Binary::ShiftRight),
            BitwiseRightShiftScalar(op) => with(op, Binary::ShiftRight),
            BitwiseNot(op) => map(op, |x| x.unary(Unary::Not)),
        }
    }
}
