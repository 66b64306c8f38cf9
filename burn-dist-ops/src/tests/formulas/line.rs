//! Operations of Burn 0.22.

use burn_ir::{
    ActivationOperationIr, BaseOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
};

/// Sets what an operation reduces to its last dims, if it is one of this line's; returns whether it is.
pub(super) fn along_rows(op: &mut NumericOperationIr) -> bool {
    let NumericOperationIr::SumDims(op) = op else {
        return false;
    };
    let last = op.input.shape.num_dims() - 1;
    op.axes = (0..last).collect();
    let mut shape = vec![1; last];
    shape.push(op.input.shape[last]);
    op.out.shape = shape.into();
    true
}

/// Does as [`along_rows`], of tensors of any kind.
pub(super) fn base_along_rows(op: &mut BaseOperationIr) -> bool {
    let (BaseOperationIr::AllDim(op) | BaseOperationIr::AnyDim(op)) = op else {
        return false;
    };
    let mut shape = op.input.shape.to_vec();
    op.axis = shape.len() - 1;
    shape[op.axis] = 1;
    op.out.shape = shape.into();
    true
}

/// Does as [`along_rows`], of activations and modules.
pub(super) fn module_along_rows(op: &mut OperationIr) -> bool {
    use ActivationOperationIr::*;
    match op {
        OperationIr::Activation(Softmax(op) | LogSoftmax(op) | Softmin(op)) => {
            op.axis = op.input.shape.num_dims() - 1;
        }
        OperationIr::Module(ModuleOperationIr::BatchNorm(op)) => {
            let shape = vec![op.x.shape[0], op.x.shape[1]];
            op.x.shape = shape.clone().into();
            op.out.shape = shape.into();
        }
        _ => return false,
    }
    true
}

/// Operations without a formula, family by family.
pub(super) const WITHOUT: &str = "\
    base_bool: all any cat empty flip gather gather_nd permute scatter scatter_nd select \
        select_assign slice slice_assign swap_dims unfold\n\
    base_float: all any cat empty flip gather gather_nd permute scatter_nd select \
        select_assign slice slice_assign swap_dims unfold\n\
    base_int: all any cat empty flip gather gather_nd permute scatter_nd select \
        select_assign slice slice_assign swap_dims unfold\n\
    custom: custom\n\
    drop: drop\n\
    float: acosh asinh cross dequantize grid_sample_2d hypot matmul quantize random\n\
    init: init\n\
    int: matmul\n\
    module: adaptive_avg_pool1d adaptive_avg_pool1d_backward adaptive_avg_pool2d adaptive_avg_pool2d_backward \
        adaptive_avg_pool3d adaptive_avg_pool3d_backward attention avg_pool1d avg_pool1d_backward avg_pool2d \
        avg_pool2d_backward conv1d conv1d_bias_backward conv1d_weight_backward conv1d_x_backward conv2d \
        conv2d_bias_backward conv2d_weight_backward conv2d_x_backward conv3d conv3d_bias_backward \
        conv3d_weight_backward conv3d_x_backward conv_transpose1d conv_transpose1d_bias_backward \
        conv_transpose1d_weight_backward conv_transpose2d conv_transpose2d_bias_backward \
        conv_transpose2d_weight_backward conv_transpose3d conv_transpose3d_bias_backward \
        conv_transpose3d_weight_backward ctc_loss ctc_loss_backward deform_conv2d deform_conv2d_backward embedding \
        embedding_backward interpolate interpolate_backward linear linear_bias_backward linear_weight_backward \
        linear_x_backward max_pool1d max_pool1d_with_indices max_pool1d_with_indices_backward max_pool2d \
        max_pool2d_with_indices max_pool2d_with_indices_backward unfold4d\n\
    numeric_float: argmax argmin argsort argtopk cummax cummin cumprod cumsum max_dim_with_indices \
        min_dim_with_indices pad sort sort_with_indices topk topk_with_indices\n\
    numeric_int: argmax argmin argsort argtopk cummax cummin cumprod cumsum max_dim_with_indices mean mean_dim \
        min_dim_with_indices pad random sort sort_with_indices topk topk_with_indices";
