//! Convolutions and their backwards.

use crate::run::execute::{Context, Env};
use burn_ir::*;

/// Defines ops that take `x`, `weight` and perhaps `bias`.
macro_rules! forward {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let weight = cx.float(&op.weight);
            let bias = cx.float_if(&op.bias);
            cx.put_float(&op.out, B::$kernel(x, weight, bias, op.options.clone().into()));
        }
    )*};
}

/// Defines gradients with respect to `x` and `weight`.
macro_rules! backward {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let weight = cx.float(&op.weight);
            let grad = cx.float(&op.output_grad);
            cx.put_float(&op.out, B::$kernel(x, weight, grad, op.options.clone().into()));
        }
    )*};
}

/// Defines gradients with respect to `bias`.
macro_rules! bias_backward {
    ($( $kernel:ident $op:ident; )*) => {$(
        pub(super) fn $kernel<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &$op) {
            let x = cx.float(&op.x);
            let bias = cx.float(&op.bias);
            let grad = cx.float(&op.output_grad);
            cx.put_float(&op.out, B::$kernel(x, bias, grad));
        }
    )*};
}

forward! {
    conv1d Conv1dOpIr;
    conv2d Conv2dOpIr;
    conv3d Conv3dOpIr;
    conv_transpose1d ConvTranspose1dOpIr;
    conv_transpose2d ConvTranspose2dOpIr;
    conv_transpose3d ConvTranspose3dOpIr;
}

backward! {
    conv1d_x_backward Conv1dXBackwardOpIr;
    conv2d_x_backward Conv2dXBackwardOpIr;
    conv3d_x_backward Conv3dXBackwardOpIr;
    conv1d_weight_backward Conv1dWeightBackwardOpIr;
    conv2d_weight_backward Conv2dWeightBackwardOpIr;
    conv3d_weight_backward Conv3dWeightBackwardOpIr;
}

bias_backward! {
    conv1d_bias_backward Conv1dBiasBackwardOpIr;
    conv2d_bias_backward Conv2dBiasBackwardOpIr;
    conv3d_bias_backward Conv3dBiasBackwardOpIr;
}

pub(super) fn deform_conv2d<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    op: &DeformConv2dOpIr,
) {
    let x = cx.float(&op.x);
    let offset = cx.float(&op.offset);
    let weight = cx.float(&op.weight);
    let mask = cx.float_if(&op.mask);
    let bias = cx.float_if(&op.bias);
    let options = op.options.clone().into();
    cx.put_float(
        &op.out,
        B::deform_conv2d(x, offset, weight, mask, bias, options),
    );
}

pub(super) fn deform_conv2d_backward<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    op: &DeformConv2dBackwardOpIr,
) {
    let x = cx.float(&op.x);
    let offset = cx.float(&op.offset);
    let weight = cx.float(&op.weight);
    let out_grad = cx.float(&op.out_grad);
    let mask = cx.float_if(&op.mask);
    let bias = cx.float_if(&op.bias);
    let options = op.options.clone().into();
    let grads = B::deform_conv2d_backward(x, offset, weight, mask, bias, out_grad, options);
    cx.put_float(&op.input_grad, grads.x_grad);
    cx.put_float(&op.offset_grad, grads.offset_grad);
    cx.put_float(&op.weight_grad, grads.weight_grad);
    if let (Some(out), Some(grad)) = (&op.mask_grad, grads.mask_grad) {
        cx.put_float(out, grad);
    }
    if let (Some(out), Some(grad)) = (&op.bias_grad, grads.bias_grad) {
        cx.put_float(out, grad);
    }
}
