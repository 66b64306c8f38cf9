//! Ops of whole modules: linear layers, embeddings, convolutions, pools, spectra, attention, losses.

mod conv;
mod pool;

use super::{Context, Env, ExecuteError};
use burn_ir::{BackendIr, ModuleOperationIr};

pub(super) fn execute<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    op: &ModuleOperationIr,
) -> Result<(), ExecuteError> {
    match op {
        ModuleOperationIr::Embedding(op) => {
            let weights = cx.float(&op.weights);
            let indices = cx.int(&op.indices);
            cx.put_float(&op.out, B::embedding(weights, indices));
        }
        ModuleOperationIr::EmbeddingBackward(op) => {
            let weights = cx.float(&op.weights);
            let grad = cx.float(&op.out_grad);
            let indices = cx.int(&op.indices);
            cx.put_float(&op.out, B::embedding_backward(weights, grad, indices));
        }
        ModuleOperationIr::Linear(op) => {
            let x = cx.float(&op.x);
            let weight = cx.float(&op.weight);
            let bias = cx.float_if(&op.bias);
            cx.put_float(&op.out, B::linear(x, weight, bias));
        }
        ModuleOperationIr::LinearXBackward(op) => {
            let weight = cx.float(&op.weight);
            let grad = cx.float(&op.output_grad);
            cx.put_float(&op.out, B::linear_x_backward(weight, grad));
        }
        ModuleOperationIr::LinearWeightBackward(op) => {
            let x = cx.float(&op.x);
            let grad = cx.float(&op.output_grad);
            cx.put_float(&op.out, B::linear_weight_backward(x, grad));
        }
        ModuleOperationIr::LinearBiasBackward(op) => {
            let grad = cx.float(&op.output_grad);
            cx.put_float(&op.out, B::linear_bias_backward(grad));
        }

        ModuleOperationIr::Conv1d(op) => conv::conv1d(cx, op),
        ModuleOperationIr::Conv1dXBackward(op) => conv::conv1d_x_backward(cx, op),
        ModuleOperationIr::Conv1dWeightBackward(op) => conv::conv1d_weight_backward(cx, op),
        ModuleOperationIr::Conv1dBiasBackward(op) => conv::conv1d_bias_backward(cx, op),
        ModuleOperationIr::Conv2d(op) => conv::conv2d(cx, op),
        ModuleOperationIr::Conv2dXBackward(op) => conv::conv2d_x_backward(cx, op),
        ModuleOperationIr::Conv2dWeightBackward(op) => conv::conv2d_weight_backward(cx, op),
        ModuleOperationIr::Conv2dBiasBackward(op) => conv::conv2d_bias_backward(cx, op),
        ModuleOperationIr::Conv3d(op) => conv::conv3d(cx, op),
        ModuleOperationIr::Conv3dXBackward(op) => conv::conv3d_x_backward(cx, op),
        ModuleOperationIr::Conv3dWeightBackward(op) => conv::conv3d_weight_backward(cx, op),
        ModuleOperationIr::Conv3dBiasBackward(op) => conv::conv3d_bias_backward(cx, op),
        ModuleOperationIr::ConvTranspose1d(op) => conv::conv_transpose1d(cx, op),
        ModuleOperationIr::ConvTranspose2d(op) => conv::conv_transpose2d(cx, op),
        ModuleOperationIr::ConvTranspose3d(op) => conv::conv_transpose3d(cx, op),
        ModuleOperationIr::DeformableConv2d(op) => conv::deform_conv2d(cx, op),
        ModuleOperationIr::DeformableConv2dBackward(op) => conv::deform_conv2d_backward(cx, op),

        ModuleOperationIr::AvgPool1d(op) => pool::avg_pool1d(cx, op),
        ModuleOperationIr::AvgPool2d(op) => pool::avg_pool2d(cx, op),
        ModuleOperationIr::AvgPool1dBackward(op) => pool::avg_pool1d_backward(cx, op),
        ModuleOperationIr::AvgPool2dBackward(op) => pool::avg_pool2d_backward(cx, op),
        ModuleOperationIr::AdaptiveAvgPool1d(op) => {
            let x = cx.float(&op.x);
            cx.put_float(&op.out, B::adaptive_avg_pool1d(x, op.output_size));
        }
        ModuleOperationIr::AdaptiveAvgPool2d(op) => {
            let x = cx.float(&op.x);
            cx.put_float(&op.out, B::adaptive_avg_pool2d(x, op.output_size));
        }
        ModuleOperationIr::AdaptiveAvgPool1dBackward(op) => {
            let x = cx.float(&op.x);
            let grad = cx.float(&op.grad);
            cx.put_float(&op.out, B::adaptive_avg_pool1d_backward(x, grad));
        }
        ModuleOperationIr::AdaptiveAvgPool2dBackward(op) => {
            let x = cx.float(&op.x);
            let grad = cx.float(&op.grad);
            cx.put_float(&op.out, B::adaptive_avg_pool2d_backward(x, grad));
        }
        ModuleOperationIr::MaxPool1d(op) => pool::max_pool1d(cx, op),
        ModuleOperationIr::MaxPool1dWithIndices(op) => pool::max_pool1d_with_indices(cx, op),
        ModuleOperationIr::MaxPool1dWithIndicesBackward(op) => pool::max_pool1d_backward(cx, op),
        ModuleOperationIr::MaxPool2d(op) => pool::max_pool2d(cx, op),
        ModuleOperationIr::MaxPool2dWithIndices(op) => pool::max_pool2d_with_indices(cx, op),
        ModuleOperationIr::MaxPool2dWithIndicesBackward(op) => pool::max_pool2d_backward(cx, op),
        ModuleOperationIr::Interpolate(op) => {
            let x = cx.float(&op.x);
            let out = B::interpolate(x, op.output_size, op.options.clone().into());
            cx.put_float(&op.out, out);
        }
        ModuleOperationIr::InterpolateBackward(op) => {
            let x = cx.float(&op.x);
            let grad = cx.float(&op.grad);
            let out = B::interpolate_backward(x, grad, op.output_size, op.options.clone().into());
            cx.put_float(&op.out, out);
        }

        ModuleOperationIr::Rfft(op) => {
            let signal = cx.float(&op.signal);
            let (re, im) = B::rfft(signal, op.dim, op.n);
            cx.put_float(&op.out_re, re);
            cx.put_float(&op.out_im, im);
        }
        ModuleOperationIr::IRfft(op) => {
            let re = cx.float(&op.input_re);
            let im = cx.float(&op.input_im);
            cx.put_float(&op.out_signal, B::irfft(re, im, op.dim, op.n));
        }
        ModuleOperationIr::Attention(op) => {
            let query = cx.float(&op.query);
            let key = cx.float(&op.key);
            let value = cx.float(&op.value);
            let mask = cx.bool_if(&op.mask);
            let bias = cx.float_if(&op.attn_bias);
            let options = op.options.clone().into();
            cx.put_float(
                &op.out,
                B::attention(query, key, value, mask, bias, options),
            );
        }
        ModuleOperationIr::CtcLoss(op) => {
            let log_probs = cx.float(&op.log_probs);
            let targets = cx.int(&op.targets);
            let input_lengths = cx.int(&op.input_lengths);
            let target_lengths = cx.int(&op.target_lengths);
            let out = B::ctc_loss(log_probs, targets, input_lengths, target_lengths, op.blank);
            cx.put_float(&op.out, out);
        }
        ModuleOperationIr::CtcLossBackward(op) => {
            if !B::has_ctc_loss_backward() {
                return Err(ExecuteError::Unsupported {
                    op: "ctc_loss_backward".into(),
                    reason: "the backend has no kernel for it: differentiate the ops of the loss",
                });
            }
            let log_probs = cx.float(&op.log_probs);
            let targets = cx.int(&op.targets);
            let input_lengths = cx.int(&op.input_lengths);
            let target_lengths = cx.int(&op.target_lengths);
            let grad = cx.float(&op.grad_loss);
            let out = B::ctc_loss_backward(
                log_probs,
                targets,
                input_lengths,
                target_lengths,
                grad,
                op.blank,
            );
            cx.put_float(&op.out, out);
        }
    }
    Ok(())
}
