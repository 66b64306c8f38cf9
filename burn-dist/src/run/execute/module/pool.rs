//! Average and max pools and their backwards.

use crate::run::execute::{Context, Env};
use burn_backend::TensorMetadata;
use burn_ir::*;

macro_rules! average {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let out = B::$kernel(
                x, op.kernel_size, op.stride, op.padding, op.count_include_pad, op.ceil_mode,
            );
            cx.put_float(&op.out, out);
        }
    )*};
}

macro_rules! average_backward {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let grad = cx.float(&op.grad);
            let out = B::$kernel(
                x, grad, op.kernel_size, op.stride, op.padding, op.count_include_pad, op.ceil_mode,
            );
            cx.put_float(&op.out, out);
        }
    )*};
}

macro_rules! maximum {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let out = B::$kernel(
                x, op.kernel_size, op.stride, op.padding, op.dilation, op.ceil_mode,
            );
            cx.put_float(&op.out, out);
        }
    )*};
}

macro_rules! maximum_with_indices {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let pooled = B::$kernel(
                x, op.kernel_size, op.stride, op.padding, op.dilation, op.ceil_mode,
            );
            cx.put_float(&op.out, pooled.output);
            cx.put_int(&op.out_indices, pooled.indices);
        }
    )*};
}

// A backend's backward takes indices in the dtype in which its own forward makes them (Flex: i64), which need not be
// that of the program's ints: pooling one element tells which it is.
macro_rules! maximum_backward {
    ($( $name:ident $forward:ident $kernel:ident $op:ident $ndim:literal $size:expr; )*) => {$(
        pub(super) fn $name<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let one = B::float_zeros([1; $ndim].into(), cx.env.device(), op.x.dtype.into());
            let [kernel, stride, padding, dilation] = [1, 1, 0, 1].map($size);
            let own = B::$forward(one, kernel, stride, padding, dilation, false).indices.dtype();
            let mut indices = cx.int(&op.indices);
            if indices.dtype() != own {
                indices = B::int_cast(indices, own.into());
            }
            let grad = cx.float(&op.grad);
            let grads = B::$kernel(
                x, op.kernel_size, op.stride, op.padding, op.dilation, op.ceil_mode, grad, indices,
            );
            cx.put_float(&op.out, grads.x_grad);
        }
    )*};
}

average! {
    avg_pool1d AvgPool1dOpIr;
    avg_pool2d AvgPool2dOpIr;
}

average_backward! {
    avg_pool1d_backward AvgPool1dBackwardOpIr;
    avg_pool2d_backward AvgPool2dBackwardOpIr;
}

maximum! {
    max_pool1d MaxPool1dOpIr;
    max_pool2d MaxPool2dOpIr;
}

maximum_with_indices! {
    max_pool1d_with_indices MaxPool1dWithIndicesOpIr;
    max_pool2d_with_indices MaxPool2dWithIndicesOpIr;
}

maximum_backward! {
    max_pool1d_backward max_pool1d_with_indices max_pool1d_with_indices_backward MaxPool1dWithIndicesBackwardOpIr 3 |size| size;
    max_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward MaxPool2dWithIndicesBackwardOpIr 4 |size| [size, size];
}
