//! Operations that Burn has as one: layers, convolutions, pools, attention.

use burn::nn::loss::CTCLossConfig;
use burn::tensor::ops::{
    AttentionModuleOptions, AvgPoolOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions,
    GridSampleOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions, UnfoldOptions,
};
use burn::tensor::{Tensor, module};

use super::harness::cases;

/// Returns the options of a pool of maxima.
fn max<const N: usize>(
    size: [usize; N],
    stride: [usize; N],
    padding: [usize; N],
    ceil: bool,
) -> MaxPoolOptions<N> {
    MaxPoolOptions {
        ceil_mode: ceil,
        ..MaxPoolOptions::new(size)
            .with_stride(stride)
            .with_padding(padding)
    }
}

/// Returns the options of a pool of means.
fn mean<const N: usize>(
    size: [usize; N],
    stride: [usize; N],
    padding: [usize; N],
    pads: bool,
) -> AvgPoolOptions<N> {
    AvgPoolOptions {
        count_include_pad: pads,
        ..AvgPoolOptions::new(size)
            .with_stride(stride)
            .with_padding(padding)
    }
}

cases! {
    fn linear(c) {
        let (x, w, b) = (c.float([3, 5]), c.float([5, 4]), c.float([4]));
        c.out(module::linear(x.clone(), w.clone(), Some(b)));
        c.out(module::linear(x, w, None));
        let (x, w, b) = (c.float([2, 3, 7]), c.float([7, 2]), c.float([2]));
        c.out(module::linear(x, w, Some(b)));
        let (x, w) = (c.float([2, 1, 3, 4]), c.float([4, 6]));
        c.out(module::linear(x, w, None));
    }
    fn linear_chain(c) {
        let (x, w1, w2) = (c.float([2, 3, 4]), c.float([4, 6]), c.float([6, 4]));
        let h = burn::tensor::activation::silu(module::linear(x.clone(), w1, None));
        c.out(x + module::linear(h, w2, None) * 0.25);
    }
    fn embedding(c) {
        c.exact();
        let (table, indices) = (c.float([7, 3]), c.int(0, 7, [2, 5]));
        c.out(module::embedding(table.clone(), indices));
        let one = c.int(0, 7, [1, 1]);
        c.out(module::embedding(table, one));
    }
    fn conv1d(c) {
        let (x, w, b) = (c.float([3, 2, 7]), c.float([4, 2, 3]), c.float([4]));
        c.out(module::conv1d(x.clone(), w.clone(), Some(b), ConvOptions::new([1], [1], [1], 1)));
        c.out(module::conv1d(x, w, None, ConvOptions::new([2], [0], [2], 1)));
    }
    fn conv1d_groups(c) {
        let (x, w, b) = (c.float([2, 4, 5]), c.float([6, 2, 3]), c.float([6]));
        c.out(module::conv1d(x, w, Some(b), ConvOptions::new([1], [1], [1], 2)));
    }
    fn conv2d(c) {
        let (x, w, b) = (c.float([2, 3, 5, 4]), c.float([2, 3, 3, 2]), c.float([2]));
        c.out(module::conv2d(x.clone(), w.clone(), Some(b), ConvOptions::new([1, 2], [1, 0], [1, 1], 1)));
        c.out(module::conv2d(x, w, None, ConvOptions::new([1, 1], [0, 1], [1, 2], 1)));
    }
    fn conv2d_groups(c) {
        let (x, w) = (c.float([1, 4, 3, 3]), c.float([4, 1, 2, 2]));
        c.out(module::conv2d(x, w, None, ConvOptions::new([1, 1], [0, 0], [1, 1], 4)));
    }
    fn conv3d(c) {
        let (x, w, b) = (c.float([2, 2, 3, 2, 3]), c.float([3, 2, 2, 1, 2]), c.float([3]));
        c.out(module::conv3d(x, w, Some(b), ConvOptions::new([1, 1, 1], [0, 0, 1], [1, 1, 1], 1)));
    }
    fn conv_transpose1d(c) {
        let (x, w, b) = (c.float([2, 3, 4]), c.float([3, 2, 3]), c.float([2]));
        c.out(module::conv_transpose1d(x, w, Some(b), ConvTransposeOptions::new([2], [1], [1], [1], 1)));
    }
    fn conv_transpose2d(c) {
        let (x, w, b) = (c.float([2, 2, 3, 2]), c.float([2, 3, 2, 2]), c.float([3]));
        c.out(module::conv_transpose2d(x, w, Some(b), ConvTransposeOptions::new([1, 2], [0, 0], [0, 1], [1, 1], 1)));
        let (x, w) = (c.float([1, 4, 2, 2]), c.float([4, 1, 2, 2]));
        c.out(module::conv_transpose2d(x, w, None, ConvTransposeOptions::new([1, 1], [0, 0], [0, 0], [1, 1], 2)));
    }
    fn conv_transpose3d(c) {
        let (x, w) = (c.float([1, 2, 2, 2, 3]), c.float([2, 3, 1, 2, 2]));
        let options = || ConvTransposeOptions::new([1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1);
        c.out(module::conv_transpose3d(x.clone(), w.clone(), None, options()));
        let b = c.float([3]);
        c.out(module::conv_transpose3d(x, w, Some(b), options()));
    }
    fn deform_conv2d(c) {
        let (x, w, b) = (c.float([2, 2, 4, 4]), c.float([3, 2, 2, 2]), c.float([3]));
        let (offset, mask) = (c.between(-0.4, 0.4, [2, 8, 3, 3]), c.between(0.2, 1.0, [2, 4, 3, 3]));
        c.out(module::deform_conv2d(x, offset, w, Some(mask), Some(b), DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1)));
    }
    fn unfold4d(c) {
        let x = c.float([2, 3, 4, 5]);
        c.out(module::unfold4d(x, [2, 3], UnfoldOptions::new([1, 1], [0, 1], [1, 1])));
    }
    fn max_pool(c) {
        c.exact();
        let x = c.float([3, 2, 7]);
        c.out(module::max_pool1d(x.clone(), max([3], [2], [1], false)));
        let (values, indices) = module::max_pool1d_with_indices(x, max([2], [2], [0], true));
        c.out(values);
        c.out_int(indices);
        let x = c.float([2, 3, 5, 4]);
        c.out(module::max_pool2d(x.clone(), max([2, 3], [1, 2], [0, 1], false)));
        let (values, indices) = module::max_pool2d_with_indices(x, max([2, 2], [2, 2], [0, 0], false));
        c.out(values);
        c.out_int(indices);
    }
    fn avg_pool(c) {
        let x = c.float([3, 2, 7]);
        c.out(module::avg_pool1d(x.clone(), mean([3], [2], [1], true)));
        c.out(module::avg_pool1d(x, mean([2], [1], [1], false)));
        let x = c.float([2, 3, 5, 4]);
        c.out(module::avg_pool2d(x, mean([2, 3], [1, 2], [0, 1], true)));
    }
    fn adaptive_avg_pool(c) {
        let x = c.float([3, 2, 7]);
        c.out(module::adaptive_avg_pool1d(x, 3));
        let x = c.float([2, 3, 5, 4]);
        c.out(module::adaptive_avg_pool2d(x, [2, 3]));
        let x = c.float([2, 3, 4, 5, 4]);
        c.out(module::adaptive_avg_pool3d(x, [2, 3, 2]));
    }
    fn interpolate(c) {
        let x = c.float([2, 3, 3, 4]);
        c.out(module::interpolate(x.clone(), InterpolateOptions::new(InterpolateMode::Nearest).with_output_size([5, 6])));
        let x = x.detach();
        c.value(module::interpolate(x.clone(), InterpolateOptions::new(InterpolateMode::Bilinear).with_output_size([5, 6])));
        c.value(module::interpolate(x, InterpolateOptions::new(InterpolateMode::Bicubic).with_output_size([5, 6])));
    }
    fn grid_sample(c) {
        let x = c.constant([2, 3, 4, 5]);
        let grid = c.between(-0.9, 0.9, [2, 3, 2, 2]).detach();
        c.value(x.grid_sample_2d(grid, GridSampleOptions::default()));
    }
    fn attention(c) {
        let (q, k, v) = (c.float([2, 3, 5, 4]), c.float([2, 3, 7, 4]), c.float([2, 3, 7, 2]));
        c.out(module::attention(q, k, v, None, None, AttentionModuleOptions::default()));
    }
    fn attention_causal(c) {
        let (q, k, v) = (c.float([2, 4, 5, 2]), c.float([2, 4, 5, 2]), c.float([2, 4, 5, 2]));
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        c.out(module::attention(q, k, v, None, None, options));
    }
    fn attention_masked(c) {
        let (q, k, v) = (c.float([1, 3, 5, 4]), c.float([1, 3, 5, 4]), c.float([1, 3, 5, 4]));
        let mask = c.bool([1, 3, 5, 5]);
        let bias = c.constant([1, 3, 5, 5]);
        c.out(module::attention(q, k, v, Some(mask), Some(bias), AttentionModuleOptions::default()));
    }
    fn ctc_loss(c) {
        let (log_probs, targets) = (c.float([7, 3, 5]), c.int(1, 5, [3, 2]));
        let log_probs = burn::tensor::activation::log_softmax(log_probs, 2);
        let input_lengths = Tensor::from_ints([7, 6, 5], &c.device);
        let target_lengths = Tensor::from_ints([2, 1, 2], &c.device);
        let loss = CTCLossConfig::new().init();
        c.out(loss.forward(log_probs.clone(), targets.clone(), input_lengths.clone(), target_lengths.clone()));
        let inference = loss.forward(log_probs.inner(), targets.inner(), input_lengths.inner(), target_lengths.inner());
        c.value(Tensor::from_inner(inference));
    }
    fn layer_norm(c) {
        let (x, gamma, beta) = (c.float([3, 2, 6]), c.float([6]), c.float([6]));
        c.out(module::layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5));
        let [gamma, beta] = [gamma.inner(), beta.inner()];
        c.value(Tensor::from_inner(module::layer_norm(x.inner(), gamma, Some(beta), 1e-5)));
    }
    fn without_autodiff(c) {
        // As one operation of the backend, which `Autodiff` takes apart.
        let x = c.constant([2, 3, 4, 5]).inner();
        let options = UnfoldOptions::new([1, 1], [0, 1], [1, 1]);
        c.value(Tensor::from_inner(module::unfold4d(x, [2, 3], options)));
        let x = c.constant([3, 2, 7]).inner();
        c.value(Tensor::from_inner(module::max_pool1d(x, max([3], [2], [1], false))));
        let x = c.constant([2, 3, 5, 4]).inner();
        c.value(Tensor::from_inner(module::max_pool2d(x, max([2, 3], [1, 2], [0, 1], false))));
        let (q, k, v) = (c.constant([2, 3, 5, 4]), c.constant([2, 3, 7, 4]), c.constant([2, 3, 7, 2]));
        let options = AttentionModuleOptions::default();
        c.value(Tensor::from_inner(module::attention(q.inner(), k.inner(), v.inner(), None, None, options)));
        let x = c.constant([2, 3, 4, 5]).inner();
        let grid = c.between(-0.9, 0.9, [2, 3, 2, 2]).inner();
        c.value(Tensor::from_inner(x.grid_sample_2d(grid, GridSampleOptions::default())));
    }
}
