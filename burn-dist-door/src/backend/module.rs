//! Operations that Burn has as one: layers, convolutions, pools, attention, Fourier transforms.

#[cfg(not(burn_021))]
use burn_backend::IntDType;
use burn_backend::TensorMetadata;
#[cfg(not(burn_021))]
use burn_backend::ops::UnfoldOptions;
use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
    DeformConvOptions, InterpolateOptions, MaxPool1dBackward, MaxPool1dWithIndices,
    MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps,
};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_ir::{CtcLossBackwardOpIr, CtcLossOpIr, ModuleOperationIr, OperationIr};
#[cfg(burn_021)]
use burn_ir::{IRfftOpIr, OperationOutput, RfftOpIr};

use super::{Dist, Router, delegate, delegate_parts, record_on, recording};
use crate::{Call, Inner, Recorder, RouterClient};

impl<E: Inner> ModuleOps<Self> for Dist<E> {
    delegate! {
        fn linear_x_backward(weight: FloatTensor<Self>, output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn linear_weight_backward(x: FloatTensor<Self>, output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn linear_bias_backward(output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn conv1d(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: Option<FloatTensor<Self>>, options: ConvOptions<1>) -> FloatTensor<Self>;
        fn conv1d_x_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvOptions<1>
        ) -> FloatTensor<Self>;
        fn conv1d_weight_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvOptions<1>
        ) -> FloatTensor<Self>;
        fn conv1d_bias_backward(x: FloatTensor<Self>, bias: FloatTensor<Self>, output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn conv2d(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: Option<FloatTensor<Self>>, options: ConvOptions<2>) -> FloatTensor<Self>;
        fn conv2d_x_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvOptions<2>
        ) -> FloatTensor<Self>;
        fn conv2d_weight_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvOptions<2>
        ) -> FloatTensor<Self>;
        fn conv2d_bias_backward(x: FloatTensor<Self>, bias: FloatTensor<Self>, output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn conv3d(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: Option<FloatTensor<Self>>, options: ConvOptions<3>) -> FloatTensor<Self>;
        fn conv3d_x_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvOptions<3>
        ) -> FloatTensor<Self>;
        fn conv3d_weight_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvOptions<3>
        ) -> FloatTensor<Self>;
        fn conv3d_bias_backward(x: FloatTensor<Self>, bias: FloatTensor<Self>, output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn conv_transpose1d(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: Option<FloatTensor<Self>>, options: ConvTransposeOptions<1>
        ) -> FloatTensor<Self>;
        fn conv_transpose2d(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: Option<FloatTensor<Self>>, options: ConvTransposeOptions<2>
        ) -> FloatTensor<Self>;
        fn conv_transpose3d(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: Option<FloatTensor<Self>>, options: ConvTransposeOptions<3>
        ) -> FloatTensor<Self>;
        fn avg_pool1d(
            x: FloatTensor<Self>, kernel_size: usize, stride: usize, padding: usize, count_include_pad: bool, ceil_mode: bool
        ) -> FloatTensor<Self>;
        fn avg_pool2d(
            x: FloatTensor<Self>, kernel_size: [usize; 2], stride: [usize; 2], padding: [usize; 2], count_include_pad: bool,
            ceil_mode: bool
        ) -> FloatTensor<Self>;
        fn avg_pool1d_backward(
            x: FloatTensor<Self>, grad: FloatTensor<Self>, kernel_size: usize, stride: usize, padding: usize, count_include_pad: bool,
            ceil_mode: bool
        ) -> FloatTensor<Self>;
        fn avg_pool2d_backward(
            x: FloatTensor<Self>, grad: FloatTensor<Self>, kernel_size: [usize; 2], stride: [usize; 2], padding: [usize; 2],
            count_include_pad: bool, ceil_mode: bool
        ) -> FloatTensor<Self>;
        fn max_pool1d(x: FloatTensor<Self>, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool) -> FloatTensor<Self>;
        fn max_pool2d(
            x: FloatTensor<Self>, kernel_size: [usize; 2], stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2],
            ceil_mode: bool
        ) -> FloatTensor<Self>;
        fn adaptive_avg_pool1d(x: FloatTensor<Self>, output_size: usize) -> FloatTensor<Self>;
        fn adaptive_avg_pool2d(x: FloatTensor<Self>, output_size: [usize; 2]) -> FloatTensor<Self>;
        fn adaptive_avg_pool1d_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn adaptive_avg_pool2d_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn interpolate(x: FloatTensor<Self>, output_size: [usize; 2], options: InterpolateOptions) -> FloatTensor<Self>;
        fn interpolate_backward(
            x: FloatTensor<Self>, grad: FloatTensor<Self>, output_size: [usize; 2], options: InterpolateOptions
        ) -> FloatTensor<Self>;
        fn deform_conv2d(
            x: FloatTensor<Self>, offset: FloatTensor<Self>, weight: FloatTensor<Self>, mask: Option<FloatTensor<Self>>,
            bias: Option<FloatTensor<Self>>, options: DeformConvOptions<2>
        ) -> FloatTensor<Self>;
        fn attention(
            query: FloatTensor<Self>, key: FloatTensor<Self>, value: FloatTensor<Self>, mask: Option<BoolTensor<Self>>,
            attn_bias: Option<FloatTensor<Self>>, options: AttentionModuleOptions
        ) -> FloatTensor<Self>;
    }

    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        let _recording = recording!("linear", x, weight, bias);
        check_linear::<E>(&x, &weight, bias.as_ref());
        Router::<E>::linear(x, weight, bias)
    }

    delegate_parts! {
        fn max_pool1d_with_indices_backward(
            x: FloatTensor<Self>, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool,
            output_grad: FloatTensor<Self>, indices: IntTensor<Self>
        ) -> MaxPool1dBackward<Self> { x_grad };
        fn max_pool2d_with_indices_backward(
            x: FloatTensor<Self>, kernel_size: [usize; 2], stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], ceil_mode: bool,
            output_grad: FloatTensor<Self>, indices: IntTensor<Self>
        ) -> MaxPool2dBackward<Self> { x_grad };
        fn deform_conv2d_backward(
            x: FloatTensor<Self>, offset: FloatTensor<Self>, weight: FloatTensor<Self>, mask: Option<FloatTensor<Self>>,
            bias: Option<FloatTensor<Self>>, output_grad: FloatTensor<Self>, options: DeformConvOptions<2>
        ) -> DeformConv2dBackward<Self> { x_grad, offset_grad, weight_grad, mask_grad, bias_grad };
    }

    #[cfg(burn_021)]
    delegate_parts! {
        fn max_pool1d_with_indices(
            x: FloatTensor<Self>, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool
        ) -> MaxPool1dWithIndices<Self> { output, indices };
        fn max_pool2d_with_indices(
            x: FloatTensor<Self>, kernel_size: [usize; 2], stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], ceil_mode: bool
        ) -> MaxPool2dWithIndices<Self> { output, indices };
    }

    #[cfg(not(burn_021))]
    delegate_parts! {
        fn max_pool1d_with_indices(
            x: FloatTensor<Self>, kernel_size: usize, stride: usize, padding: usize, dilation: usize, ceil_mode: bool,
            indices_dtype: IntDType
        ) -> MaxPool1dWithIndices<Self> { output, indices };
        fn max_pool2d_with_indices(
            x: FloatTensor<Self>, kernel_size: [usize; 2], stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], ceil_mode: bool,
            indices_dtype: IntDType
        ) -> MaxPool2dWithIndices<Self> { output, indices };
    }

    #[cfg(not(burn_021))]
    delegate! {
        fn adaptive_avg_pool3d(x: FloatTensor<Self>, output_size: [usize; 3]) -> FloatTensor<Self>;
        fn adaptive_avg_pool3d_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn batch_norm(
            x: FloatTensor<Self>, gamma: FloatTensor<Self>, beta: FloatTensor<Self>, mean: FloatTensor<Self>,
            variance: FloatTensor<Self>, epsilon: f64
        ) -> FloatTensor<Self>;
        fn layer_norm(
            tensor: FloatTensor<Self>, gamma: FloatTensor<Self>, beta: Option<FloatTensor<Self>>, epsilon: f64
        ) -> FloatTensor<Self>;
        fn embedding(weights: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self>;
        fn embedding_backward(
            weights: FloatTensor<Self>, output_grad: FloatTensor<Self>, indices: IntTensor<Self>
        ) -> FloatTensor<Self>;
        fn unfold4d(x: FloatTensor<Self>, kernel_size: [usize; 2], options: UnfoldOptions) -> FloatTensor<Self>;
        fn conv_transpose1d_weight_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvTransposeOptions<1>
        ) -> FloatTensor<Self>;
        fn conv_transpose1d_bias_backward(
            x: FloatTensor<Self>, bias: FloatTensor<Self>, output_grad: FloatTensor<Self>
        ) -> FloatTensor<Self>;
        fn conv_transpose2d_weight_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvTransposeOptions<2>
        ) -> FloatTensor<Self>;
        fn conv_transpose2d_bias_backward(
            x: FloatTensor<Self>, bias: FloatTensor<Self>, output_grad: FloatTensor<Self>
        ) -> FloatTensor<Self>;
        fn conv_transpose3d_weight_backward(
            x: FloatTensor<Self>, weight: FloatTensor<Self>, output_grad: FloatTensor<Self>, options: ConvTransposeOptions<3>
        ) -> FloatTensor<Self>;
        fn conv_transpose3d_bias_backward(
            x: FloatTensor<Self>, bias: FloatTensor<Self>, output_grad: FloatTensor<Self>
        ) -> FloatTensor<Self>;
    }

    #[cfg(burn_021)]
    fn rfft(
        signal: FloatTensor<Self>,
        dim: usize,
        n: Option<usize>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let _recording = recording!("rfft", signal);
        let client = signal.client.clone();
        let desc = RfftOpIr::create(signal.into_ir(), dim, n, || client.create_empty_handle());
        let [re, im] = client
            .register(OperationIr::Module(ModuleOperationIr::Rfft(desc)))
            .outputs();
        (re, im)
    }

    #[cfg(burn_021)]
    fn irfft(
        spectrum_re: FloatTensor<Self>,
        spectrum_im: FloatTensor<Self>,
        dim: usize,
        n: Option<usize>,
    ) -> FloatTensor<Self> {
        let _recording = recording!("irfft", spectrum_re, spectrum_im);
        record_on(spectrum_re, |re, client| {
            let desc = IRfftOpIr::create(re, spectrum_im.into_ir(), dim, n, || {
                client.create_empty_handle()
            });
            OperationIr::Module(ModuleOperationIr::IRfft(desc))
        })
    }

    fn ctc_loss(
        log_probs: FloatTensor<Self>,
        targets: IntTensor<Self>,
        input_lengths: IntTensor<Self>,
        target_lengths: IntTensor<Self>,
        blank: usize,
    ) -> FloatTensor<Self> {
        let _recording = recording!(
            "ctc_loss",
            log_probs,
            targets,
            input_lengths,
            target_lengths
        );
        record_on(log_probs, |log_probs, client| {
            let desc = CtcLossOpIr::create(
                log_probs,
                targets.into_ir(),
                input_lengths.into_ir(),
                target_lengths.into_ir(),
                blank,
                || client.create_empty_handle(),
            );
            OperationIr::Module(ModuleOperationIr::CtcLoss(desc))
        })
    }

    fn has_ctc_loss_backward() -> bool {
        E::has_ctc_loss_backward()
    }

    fn ctc_loss_backward(
        log_probs: FloatTensor<Self>,
        targets: IntTensor<Self>,
        input_lengths: IntTensor<Self>,
        target_lengths: IntTensor<Self>,
        grad_loss: FloatTensor<Self>,
        blank: usize,
    ) -> FloatTensor<Self> {
        let _recording = recording!(
            "ctc_loss_backward",
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            grad_loss
        );
        record_on(log_probs, |log_probs, client| {
            let desc = CtcLossBackwardOpIr::create(
                log_probs,
                targets.into_ir(),
                input_lengths.into_ir(),
                target_lengths.into_ir(),
                grad_loss.into_ir(),
                blank,
                || client.create_empty_handle(),
            );
            OperationIr::Module(ModuleOperationIr::CtcLossBackward(desc))
        })
    }
}

/// Checks that a linear layer's parameters fit its input and each other. Burn leaves that to the backend, where no name
/// is known any more; a record of another config, loaded before the model was parallelised, ends here.
///
/// # Panics
/// If they do not fit: Burn's functions return no results.
fn check_linear<E: Inner>(
    x: &FloatTensor<Dist<E>>,
    weight: &FloatTensor<Dist<E>>,
    bias: Option<&FloatTensor<Dist<E>>>,
) {
    let (x_shape, weight_shape) = (x.shape(), weight.shape());
    let features = x_shape.last();
    let outputs = weight_shape.last();
    let name = |tensor: &FloatTensor<Dist<E>>, what: &str| {
        let ir = tensor.clone().into_ir();
        let path = tensor.client.with(|recorder| recorder.path_of(&ir));
        path.unwrap_or_else(|| format!("the {what} of a linear layer"))
    };
    let way_out = "check the sizes in the config, or whether the record was saved from another one";
    if features != weight_shape.first() {
        panic!(
            "{}: its shape is {:?} ([input, output]), and it was given an input of shape {:?}: {way_out}",
            name(weight, "weight"),
            weight_shape.as_slice(),
            x_shape.as_slice(),
        );
    }
    if let Some(bias) = bias
        && bias.shape().last() != outputs
    {
        panic!(
            "{}: its shape is {:?}, and the weight's is {:?} ([input, output]): {way_out}",
            name(bias, "bias"),
            bias.shape().as_slice(),
            weight_shape.as_slice(),
        );
    }
}
