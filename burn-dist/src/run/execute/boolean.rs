//! Ops on bools only.

use super::{Context, Env, binary, unary};
use burn_ir::{BackendIr, BoolOperationIr};

pub(super) fn execute<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &BoolOperationIr) {
    match op {
        BoolOperationIr::IntoFloat(op) => {
            let input = cx.bool(&op.input);
            cx.put_float(&op.out, B::bool_into_float(input, op.out.dtype.into()));
        }
        BoolOperationIr::IntoInt(op) => {
            let input = cx.bool(&op.input);
            cx.put_int(&op.out, B::bool_into_int(input, op.out.dtype.into()));
        }
        BoolOperationIr::Not(op) => unary!(cx, op, bool => put_bool, B::bool_not),
        BoolOperationIr::And(op) => binary!(cx, op, bool => put_bool, B::bool_and),
        BoolOperationIr::Or(op) => binary!(cx, op, bool => put_bool, B::bool_or),
    }
}
