//! Ops on ints only.

use super::{Context, Env, binary, unary, with_scalar};
use burn_ir::{BackendIr, IntOperationIr};

pub(super) fn execute<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &IntOperationIr) {
    match op {
        IntOperationIr::IntoFloat(op) => {
            let input = cx.int(&op.input);
            cx.put_float(&op.out, B::int_into_float(input, op.out.dtype.into()));
        }
        IntOperationIr::Matmul(op) => binary!(cx, op, int => put_int, B::int_matmul),
        IntOperationIr::BitwiseAnd(op) => binary!(cx, op, int => put_int, B::bitwise_and),
        IntOperationIr::BitwiseAndScalar(op) => {
            with_scalar!(cx, op, int => put_int, B::bitwise_and_scalar)
        }
        IntOperationIr::BitwiseOr(op) => binary!(cx, op, int => put_int, B::bitwise_or),
        IntOperationIr::BitwiseOrScalar(op) => {
            with_scalar!(cx, op, int => put_int, B::bitwise_or_scalar)
        }
        IntOperationIr::BitwiseXor(op) => binary!(cx, op, int => put_int, B::bitwise_xor),
        IntOperationIr::BitwiseXorScalar(op) => {
            with_scalar!(cx, op, int => put_int, B::bitwise_xor_scalar)
        }
        IntOperationIr::BitwiseNot(op) => unary!(cx, op, int => put_int, B::bitwise_not),
        IntOperationIr::BitwiseLeftShift(op) => {
            binary!(cx, op, int => put_int, B::bitwise_left_shift)
        }
        IntOperationIr::BitwiseLeftShiftScalar(op) => {
            with_scalar!(cx, op, int => put_int, B::bitwise_left_shift_scalar)
        }
        IntOperationIr::BitwiseRightShift(op) => {
            binary!(cx, op, int => put_int, B::bitwise_right_shift)
        }
        IntOperationIr::BitwiseRightShiftScalar(op) => {
            with_scalar!(cx, op, int => put_int, B::bitwise_right_shift_scalar)
        }
    }
}
