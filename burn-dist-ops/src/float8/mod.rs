//! Operations that replace linear layers that compute in float8. Rules are the planner's own
//! (`burn_dist_plan::float8`); here is how an operation runs.
//!
//! On devices of CubeCL's, kernels of burn-dist-cubecl run it (`device`). Elsewhere the reference does: values in 8
//! bits are made and taken apart on the host, products are those of the backend in f32. It is exact where the
//! definition is (maxima, scales, values in 8 bits), and as fast as a check needs.

use std::collections::HashMap;
use std::sync::Once;

use burn_backend::tensor::FloatTensor;
use burn_backend::{Scalar, Shape};
use burn_dist_kernels::float8::reference::{self, larger, scale};
use burn_dist_plan::float8::{Float8Op, Product, ScaleOf, Ways};
use burn_dist_plan::policy::Fp8;
use burn_std::DType;
use burn_std::future::block_on;

use super::Recorded;
use super::execute::{execute_recorded, from_data, into_data};
use super::family::prelude::*;
use crate::burn::data::*;
use crate::burn::into_vec;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[cfg_attr(burn_021, path = "device_021.rs")]
mod device;
#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
mod no_device;
#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
use no_device as device;

/// An operation of float8 training.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Float8 {
    /// The operation.
    pub op: Float8Op,
    pub(crate) inputs: Vec<TensorIr>,
    pub(crate) outputs: Vec<TensorIr>,
}

impl Operation for Float8 {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        self.op.rule(shapes)
    }

    /// Among several ranks with terms of a sum, one adds the bias.
    fn lower(&self, local: &Local<'_>, _: &Rule, emit: &mut Emit<'_>) {
        let mut op = local.localized(emit);
        let is_first = local.is_first(local.outputs[0].partial.iter().map(|p| p.axis));
        if let Recorded::Float8(op) = &mut op
            && !is_first
        {
            let without_bias = op.op.num_operands().unwrap_or(usize::MAX);
            op.inputs.truncate(without_bias);
        }
        emit.steps.push(op);
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

    fn of_nothing(&self) -> Option<OfNothing> {
        let made = match self.op.num_operands() {
            Some(input) if input < self.inputs.len() => Nothing::Bias {
                input,
                dim: self.out().shape.num_dims() - 1,
            },
            Some(_) => Nothing::Zeros,
            None if matches!(self.op, Float8Op::Amax(_)) => Nothing::Zeros,
            None => return None,
        };
        OfNothing::from(0, made)
    }
}

impl Run for Float8 {
    fn run<B: BackendIr, E: Env<B>>(&self, cx: &mut Context<'_, B, E>) -> Result<(), ExecuteError> {
        if let Float8Op::ProductOfRank {
            product,
            scales,
            formats,
            power_of_two,
        } = self.op
        {
            return self.of_rank(cx, product, scales, formats, power_of_two);
        }
        if device::run(self, cx) {
            return Ok(());
        }
        warn_emulated();
        let made = match self.op {
            Float8Op::Amax(of) => {
                let values = self.floats(cx, 0);
                let mut out = vec![0.0; self.out().shape.num_elements()];
                let shape = self.inputs[0].shape.as_slice();
                for (run, at) in of.runs(shape) {
                    let values = values[run].iter();
                    out[at] = values.fold(out[at], |max, value| larger(max, value.abs()));
                }
                TensorData::new(out, self.out().shape.clone())
            }
            Float8Op::Stack => {
                let all = self.inputs.iter().map(|tensor| {
                    let handle = cx.env.take(tensor);
                    let shape = tensor.shape.clone();
                    B::float_tensor(TensorHandle { handle, shape })
                });
                let made = B::float_cat(all.collect(), 0);
                cx.env.put(self.out(), B::float_tensor_handle(made));
                return Ok(());
            }
            Float8Op::Scale {
                format,
                power_of_two,
            } => {
                let maxima = self.floats(cx, 0).into_iter();
                let scales = maxima.map(|amax| scale(format, power_of_two, amax));
                TensorData::new(scales.collect::<Vec<f32>>(), self.out().shape.clone())
            }
            Float8Op::Quantize { of, format, .. } => {
                let (values, scales) = (self.floats(cx, 0), self.floats(cx, 1));
                let shape = self.inputs[0].shape.as_slice();
                let quantized = of.runs(shape).flat_map(|(run, at)| {
                    let (values, scale) = (values[run].iter(), scales[at]);
                    values.map(move |value| reference::encode(format, value * scale))
                });
                let shape = self.out().shape.clone();
                match self.out().dtype {
                    DType::U8 => TensorData::new(quantized.collect::<Vec<u8>>(), shape),
                    _ => {
                        let values = quantized.map(|bits| reference::decode(format, bits));
                        TensorData::new(values.collect::<Vec<f32>>(), shape)
                    }
                }
            }
            Float8Op::Product {
                product,
                scales,
                formats,
            } => self.product(cx, product, scales, formats),
            Float8Op::ProductOfRank { .. } => unreachable!("taken apart above"),
        };
        let made = made.convert_dtype(self.out().dtype);
        // One way round is like the other here.
        let handle = from_data::<B>(made, cx.env.device());
        for out in &self.outputs {
            cx.env.put(out, handle.clone());
        }
        Ok(())
    }
}

impl Float8 {
    /// Returns what it makes, the first of two.
    pub(crate) fn out(&self) -> &TensorIr {
        &self.outputs[0]
    }

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
        into_vec(data).expect("it was converted")
    }

    /// Takes an input in 8 bits and the inverse of its scales. Returns its values on the device: times those that vary
    /// along what is added up, which are powers of two, so that this is exact; and those that the result is to be
    /// multiplied with.
    fn decoded<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        input: usize,
        of: ScaleOf,
        format: Fp8,
    ) -> (FloatTensor<B>, Vec<f32>) {
        let mut values: Vec<f32> = match self.inputs[input].dtype {
            DType::U8 => {
                let bytes: Vec<u8> = into_vec(self.data(cx, input)).expect("it is in 8 bits");
                let values = bytes.into_iter();
                values.map(|bits| reference::decode(format, bits)).collect()
            }
            _ => self.floats(cx, input),
        };
        let scales = self.floats(cx, 2 + input);
        let inverse: Vec<f32> = scales.iter().map(|scale| scale.recip()).collect();
        let shape = self.inputs[input].shape.clone();
        let inverse = match of {
            ScaleOf::Tensor | ScaleOf::Row | ScaleOf::Column => inverse,
            ScaleOf::RowTile | ScaleOf::ColumnTile | ScaleOf::Block => {
                for (run, at) in of.runs(shape.as_slice()) {
                    values[run]
                        .iter_mut()
                        .for_each(|value| *value *= inverse[at]);
                }
                vec![1.0]
            }
        };
        let data = TensorData::new(values, shape);
        (B::float_from_data(data, cx.env.device()), inverse)
    }

    /// Multiplies in f32, divides by the scales, and adds the bias.
    fn product<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        product: Product,
        scales: [ScaleOf; 2],
        formats: [Fp8; 2],
    ) -> TensorData {
        let (first, first_scales) = self.decoded(cx, 0, scales[0], formats[0]);
        let (second, second_scales) = self.decoded(cx, 1, scales[1], formats[1]);
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
        let mut out: Vec<f32> = into_vec(sum).expect("products are in f32");
        let at = |scales: &[f32], index: usize| scales[if scales.len() == 1 { 0 } else { index }];
        let width = width(self.out());
        for (row, out) in out.chunks_mut(width).enumerate() {
            let of_row = at(&rows, row);
            for (column, value) in out.iter_mut().enumerate() {
                *value *= of_row * at(&columns, column);
            }
            if let Some(bias) = &bias {
                out.iter_mut()
                    .zip(bias)
                    .for_each(|(value, bias)| *value += bias);
            }
        }
        TensorData::new(out, self.out().shape.clone())
    }
}

impl Float8 {
    /// Finds scales, casts and multiplies, one operation after the other.
    fn of_rank<B: BackendIr, E: Env<B>>(
        &self,
        cx: &mut Context<'_, B, E>,
        product: Product,
        scales: [ScaleOf; 2],
        formats: [Fp8; 2],
        power_of_two: bool,
    ) -> Result<(), ExecuteError> {
        let mut env = Steps::<B> {
            device: cx.env.device().clone(),
            handles: HashMap::new(),
            count: 0,
        };
        let store = match B::supports_dtype(cx.env.device(), DType::U8) {
            true => DType::U8,
            false => DType::F32,
        };
        let mut tensors: Vec<TensorIr> = Vec::new();
        for input in &self.inputs {
            let handle = cx.env.take(input);
            tensors.push(env.tensor(input.shape.clone(), input.dtype));
            env.put(&tensors[tensors.len() - 1], handle);
        }
        let (operands, bias) = tensors.split_at(2);
        let mut quantized = Vec::new();
        for (operand, (of, format)) in operands.iter().zip(scales.into_iter().zip(formats)) {
            let of_scales = Shape::from(of.shape(operand.shape.as_slice()));
            let amax = env.tensor(of_scales.clone(), DType::F32);
            let scale = env.tensor(of_scales, DType::F32);
            let values = env.tensor(operand.shape.clone(), store);
            let scaled = Float8Op::Scale {
                format,
                power_of_two,
            };
            let quantize = Float8Op::Quantize {
                of,
                format,
                at_rest: false,
                ways: orders(product, quantized.len()),
            };
            env.run(Float8Op::Amax(of), vec![operand.clone()], amax.clone())?;
            env.run(scaled, vec![amax], scale.clone())?;
            env.run(
                quantize,
                vec![operand.clone(), scale.clone()],
                values.clone(),
            )?;
            quantized.push((values, scale));
        }
        let (values, scale): (Vec<TensorIr>, Vec<TensorIr>) = quantized.into_iter().unzip();
        let inputs = values.into_iter().chain(scale).chain(bias.iter().cloned());
        let out = env.tensor(self.out().shape.clone(), self.out().dtype);
        let multiply = Float8Op::Product {
            product,
            scales,
            formats,
        };
        env.run(multiply, inputs.collect(), out.clone())?;
        let made = env.take(&out);
        cx.env.put(self.out(), made);
        Ok(())
    }
}

/// How the product of a rank wants an operand, should its device care.
fn orders(product: Product, operand: usize) -> Ways {
    match product.is_turned(operand) {
        true => Ways::Turned,
        false => Ways::AsIs,
    }
}

/// The tensors of operations that follow each other, by number.
struct Steps<B: BackendIr> {
    device: B::Device,
    handles: HashMap<TensorId, B::Handle>,
    count: u64,
}

impl<B: BackendIr> Steps<B> {
    /// Returns a tensor that nothing has made yet.
    fn tensor(&mut self, shape: Shape, dtype: DType) -> TensorIr {
        self.count += 1;
        TensorIr {
            status: TensorStatus::ReadOnly,
            ..TensorIr::uninit(TensorId::new(self.count), shape, dtype)
        }
    }

    fn run(
        &mut self,
        op: Float8Op,
        inputs: Vec<TensorIr>,
        out: TensorIr,
    ) -> Result<(), ExecuteError> {
        let outputs = vec![out];
        let op = Recorded::Float8(Box::new(Float8 {
            op,
            inputs,
            outputs,
        }));
        execute_recorded::<B, _>(&op, self)
    }
}

impl<B: BackendIr> Env<B> for Steps<B> {
    fn take(&mut self, tensor: &TensorIr) -> B::Handle {
        let handle = self.handles.get(&tensor.id).cloned();
        handle.expect("operations follow what they read")
    }

    fn put(&mut self, tensor: &TensorIr, handle: B::Handle) {
        self.handles.insert(tensor.id, handle);
    }

    fn scalar(&self, _: &ScalarIr) -> Scalar {
        unreachable!("operations of float8 have no scalars")
    }

    fn device(&self) -> &B::Device {
        &self.device
    }
}

/// Returns whether products of a device want operands by rows and by columns, as the planner assumes.
pub fn turns<B: BackendIr>(device: &B::Device) -> bool {
    device::turns::<B>(device)
}

/// Returns what products run by on a device, as `explain` prints it.
pub fn runs_by<B: BackendIr>(device: &B::Device) -> String {
    let by = device::runs_by::<B>(device);
    by.unwrap_or_else(|| "the reference on the host".into())
}

/// Says once that float8 makes nothing faster here.
fn warn_emulated() {
    static WARNED: Once = Once::new();
    warn_once(&WARNED);
}

fn warn_once(warned: &Once) {
    warned.call_once(|| {
        tracing::warn!(
            "float8 is emulated: values are those of float8, and nothing is faster for it"
        );
    });
}

/// The size of the last dim.
fn width(tensor: &TensorIr) -> usize {
    let last = tensor.shape.as_slice().last();
    last.map_or(1, |size| *size).max(1)
}

#[cfg(test)]
mod tests;
