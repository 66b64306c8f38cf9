//! The kernels on one device: plain loops over the buffers of Flex's tensors.

use std::f32::consts::{FRAC_1_SQRT_2, PI};

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;
use burn_flex::FlexTensor;

use crate::Backend;

impl Backend for Flex {
    fn bias_gelu(x: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, bias) = (x.to_contiguous(), bias.to_contiguous());
        let shape = x.shape();
        let (x, bias) = (x.storage::<f32>(), bias.storage::<f32>());
        let rows = x.chunks(bias.len().max(1));
        let out = rows.flat_map(|row| row.iter().zip(bias).map(|(x, bias)| gelu(x + bias)));
        FlexTensor::from_data(TensorData::new(out.collect::<Vec<f32>>(), shape))
    }

    fn bias_gelu_backward(
        x: FlexTensor,
        bias: FlexTensor,
        gradient: FlexTensor,
    ) -> (FlexTensor, FlexTensor) {
        let (x, bias) = (x.to_contiguous(), bias.to_contiguous());
        let gradient = gradient.to_contiguous();
        let (shape, of_bias) = (x.shape(), bias.shape());
        let (x, bias) = (x.storage::<f32>(), bias.storage::<f32>());
        let width = bias.len().max(1);
        let mut to_bias = vec![0.0; bias.len()];
        let mut to_x = Vec::with_capacity(x.len());
        let rows = x.chunks(width).zip(gradient.storage::<f32>().chunks(width));
        for (row, gradient) in rows {
            for (column, (x, gradient)) in row.iter().zip(gradient).enumerate() {
                let gradient = gradient * gelu_slope(x + bias[column]);
                to_bias[column] += gradient;
                to_x.push(gradient);
            }
        }
        let tensor = |values, shape| FlexTensor::from_data(TensorData::new(values, shape));
        (tensor(to_x, shape), tensor(to_bias, of_bias))
    }
}

/// The share of a normal distribution below `x`.
fn below(x: f32) -> f32 {
    0.5 * (1.0 + erf(x * FRAC_1_SQRT_2))
}

fn gelu(x: f32) -> f32 {
    x * below(x)
}

fn gelu_slope(x: f32) -> f32 {
    below(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f32) -> f32 {
    const TERMS: [f32; 5] = [
        0.254_829_6,
        -0.284_496_72,
        1.421_413_8,
        -1.453_152_1,
        1.061_405_4,
    ];
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let sum = TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}
