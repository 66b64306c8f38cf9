//! What the planner puts in the place of linear layers that compute in float8. Rules are the planner's own
//! (`burn_dist_plan::float8`); here is how an operation runs.
//!
//! This is the reference: values in 8 bits are made and taken apart on the host, products are those of the backend in
//! f32. It is exact where the definition is (maxima, scales, values in 8 bits), and as fast as a check needs.

mod cast;

use std::sync::Once;

use burn_backend::TensorData;
use burn_backend::tensor::FloatTensor;
use burn_dist_plan::float8::{Float8Op, Product, ScaleOf};
use burn_dist_plan::policy::Fp8;
use burn_std::DType;
use burn_std::future::block_on;

use super::Recorded;
use super::execute::{from_data, into_data};
use super::family::prelude::*;

/// The least absolute maximum that scales are made for (torchao's): a tensor of zeros has a finite scale.
const AMAX_MIN: f32 = 1e-12;

/// An operation of float8 training.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Float8 {
    /// What it does.
    pub op: Float8Op,
    pub(crate) inputs: Vec<TensorIr>,
    pub(crate) out: TensorIr,
}

impl Operation for Float8 {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        self.op.rule(shapes)
    }

    /// Of several ranks with terms of a sum, one adds the bias.
    fn lower(&self, local: &Local<'_>, _: &Rule, emit: &mut Emit<'_>) {
        local.same(emit);
        let is_first = local.is_first(local.outputs[0].partial.iter().map(|p| p.axis));
        if let Some(Recorded::Float8(op)) = emit.out.last_mut().filter(|_| !is_first) {
            op.inputs.truncate(4);
        }
    }

    fn traits(&self) -> Traits {
        self.op.traits()
    }

    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        self.op.product_flops(shapes)
    }

    fn makes(&self) -> bool {
        true
    }

    fn sums_from(&self) -> Option<usize> {
        let is_product = matches!(self.op, Float8Op::Product { .. });
        (is_product && self.inputs.len() == 4).then_some(0)
    }
}

impl Run for Float8 {
    fn run<B: BackendIr, E: Env<B>>(&self, cx: &mut Context<'_, B, E>) -> Result<(), ExecuteError> {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                "float8 is emulated: values are those of float8, and nothing is faster for it"
            );
        });
        let made = match self.op {
            Float8Op::Amax(of) => {
                let values = self.floats(cx, 0);
                let mut out = vec![0.0; self.out.shape.num_elements()];
                let width = width(&self.inputs[0]);
                for (index, value) in values.iter().enumerate() {
                    let max = &mut out[shared(of, index, width)];
                    *max = larger(*max, value.abs());
                }
                TensorData::new(out, self.out.shape.clone())
            }
            Float8Op::Stack => {
                let all = (0..self.inputs.len()).flat_map(|input| self.floats(cx, input));
                TensorData::new(all.collect::<Vec<f32>>(), self.out.shape.clone())
            }
            Float8Op::Scale {
                format,
                power_of_two,
            } => {
                let maxima = self.floats(cx, 0).into_iter();
                let scales = maxima.map(|amax| scale(format, power_of_two, amax));
                TensorData::new(scales.collect::<Vec<f32>>(), self.out.shape.clone())
            }
            Float8Op::Quantize { of, format, .. } => {
                let (values, scales) = (self.floats(cx, 0), self.floats(cx, 1));
                let width = width(&self.inputs[0]);
                let quantized = values.iter().enumerate().map(|(index, value)| {
                    cast::encode(format, value * scales[shared(of, index, width)])
                });
                TensorData::new(quantized.collect::<Vec<u8>>(), self.out.shape.clone())
            }
            Float8Op::Product {
                product, formats, ..
            } => self.product(cx, product, formats),
        };
        let handle = from_data::<B>(made.convert_dtype(self.out.dtype), cx.env.device());
        cx.env.put(&self.out, handle);
        Ok(())
    }
}

impl Float8 {
    /// Takes an input and returns it on the host.
    fn data<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        input: usize,
    ) -> TensorData {
        let tensor = &self.inputs[input];
        let handle = cx.env.take(tensor);
        let data = into_data::<B>(handle, tensor.shape.clone(), tensor.dtype);
        block_on(data).expect("the device gives what it has made")
    }

    fn floats<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        input: usize,
    ) -> Vec<f32> {
        let data = self.data(cx, input).convert_dtype(DType::F32);
        data.into_vec().expect("it was converted")
    }

    /// Takes an input in 8 bits and returns its values, not divided by their scale, on the device.
    fn decoded<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        input: usize,
        format: Fp8,
    ) -> FloatTensor<B> {
        let bytes: Vec<u8> = self.data(cx, input).into_vec().expect("it is in 8 bits");
        let values = bytes.into_iter().map(|bits| cast::decode(format, bits));
        let shape = self.inputs[input].shape.clone();
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        B::float_from_data(data, cx.env.device())
    }

    /// Multiplies in f32, divides by the scales, and adds the bias.
    fn product<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        product: Product,
        formats: [Fp8; 2],
    ) -> TensorData {
        let first = self.decoded(cx, 0, formats[0]);
        let second = self.decoded(cx, 1, formats[1]);
        let inverse = |scales: Vec<f32>| -> Vec<f32> { scales.iter().map(|s| s.recip()).collect() };
        let (first_scales, second_scales) =
            (inverse(self.floats(cx, 2)), inverse(self.floats(cx, 3)));
        let bias = (self.inputs.len() > 4).then(|| self.floats(cx, 4));
        // Rows and columns of the result.
        let (sum, rows, columns) = match product {
            Product::Forward => (B::linear(first, second, None), first_scales, second_scales),
            Product::Input => (
                B::linear_x_backward(first, second),
                second_scales,
                first_scales,
            ),
            Product::Weight => (
                B::linear_weight_backward(first, second),
                first_scales,
                second_scales,
            ),
        };
        let sum = block_on(B::float_into_data(sum)).expect("the device gives what it has made");
        let mut out: Vec<f32> = sum.into_vec().expect("products are in f32");
        let at = |scales: &[f32], index: usize| scales[if scales.len() == 1 { 0 } else { index }];
        let width = width(&self.out);
        for (index, value) in out.iter_mut().enumerate() {
            let (row, column) = (index / width, index % width);
            *value *= at(&rows, row) * at(&columns, column);
            if let Some(bias) = &bias {
                *value += bias[column];
            }
        }
        TensorData::new(out, self.out.shape.clone())
    }
}

/// The size of the last dim.
fn width(tensor: &TensorIr) -> usize {
    let last = tensor.shape.as_slice().last();
    last.map_or(1, |size| *size).max(1)
}

/// Returns which scale an element has.
fn shared(of: ScaleOf, index: usize, width: usize) -> usize {
    match of {
        ScaleOf::Tensor => 0,
        ScaleOf::Row => index / width,
        ScaleOf::Column => index % width,
    }
}

/// The larger one; NaN if either is.
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// Returns what brings values up to `amax` to the largest of a format. NaN stays NaN; infinity gives zero, and so NaN
/// for every value.
fn scale(format: Fp8, power_of_two: bool, amax: f32) -> f32 {
    let amax = larger(amax, AMAX_MIN);
    let scale = (f64::from(format.max()) / f64::from(amax)) as f32;
    match power_of_two && scale.is_normal() {
        true => f32::from_bits(scale.to_bits() & 0xff80_0000),
        false => scale,
    }
}

#[cfg(test)]
mod tests;
