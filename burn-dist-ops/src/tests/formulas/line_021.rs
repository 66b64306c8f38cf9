//! Operations of Burn 0.21.

use burn_ir::{BaseOperationIr, NumericOperationIr, OperationIr};

/// Sets what an operation reduces to its last dims, if it is one of this line's; returns whether it is.
pub(super) fn along_rows(_: &mut NumericOperationIr) -> bool {
    false
}

/// Does as [`along_rows`], of tensors of any kind.
pub(super) fn base_along_rows(_: &mut BaseOperationIr) -> bool {
    false
}

/// Does as [`along_rows`], of activations and modules.
pub(super) fn module_along_rows(_: &mut OperationIr) -> bool {
    false
}

/// Operations without a formula, family by family.
pub(super) const WITHOUT: &str = "\
    base_bool: cat empty flip gather gather_nd permute scatter scatter_nd select \
        select_assign slice slice_assign swap_dims unfold\n\
    base_float: cat empty flip gather gather_nd permute scatter_nd select \
        select_assign slice slice_assign swap_dims unfold\n\
    base_int: cat empty flip gather gather_nd permute scatter_nd select \
        select_assign slice slice_assign swap_dims unfold\n\
    drop: drop\n\
    float: acosh asinh cross dequantize grid_sample_2d matmul quantize random\n\
    init: init\n\
    int: matmul\n\
    module: adaptive_avg_pool1d adaptive_avg_pool1d_backward adaptive_avg_pool2d adaptive_avg_pool2d_backward \
        attention avg_pool1d avg_pool1d_backward avg_pool2d \
        avg_pool2d_backward conv1d conv1d_bias_backward conv1d_weight_backward conv1d_x_backward conv2d \
        conv2d_bias_backward conv2d_weight_backward conv2d_x_backward conv3d conv3d_bias_backward \
        conv3d_weight_backward conv3d_x_backward conv_transpose1d \
        conv_transpose2d \
        conv_transpose3d \
        ctc_loss ctc_loss_backward deform_conv2d deform_conv2d_backward embedding \
        embedding_backward interpolate interpolate_backward irfft linear linear_bias_backward linear_weight_backward \
        linear_x_backward max_pool1d max_pool1d_with_indices max_pool1d_with_indices_backward max_pool2d \
        max_pool2d_with_indices max_pool2d_with_indices_backward rfft\n\
    numeric_float: argmax argmin argtopk cummax cummin cumprod cumsum max_dim_with_indices \
        min_dim_with_indices rem rem_scalar topk\n\
    numeric_int: argmax argmin argtopk cummax cummin cumprod cumsum max_dim_with_indices mean mean_dim \
        min_dim_with_indices random topk";
