//! Operations of float8 as kernels, where tensors are CubeCL's: one kernel for each, on every device.

use std::any::TypeId;

use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_dist_cubecl::float8::{self, Form, Operand, Tiles};
use burn_dist_cubecl::{Element, Elements};
use burn_dist_plan::float8::{Float8Op, Product, Ways};
use burn_std::DType;

use super::super::family::prelude::*;
use super::{Float8, warn_emulated};
use crate::burn::downcast;

/// Runs an operation, and returns whether it did: if tensors of `B` are CubeCL's, without burn-fusion's around them,
/// and there are kernels for their types.
pub(super) fn run<B: BackendIr, E: Env<B>>(op: &Float8, cx: &mut Context<'_, B, E>) -> bool {
    let mut tensors = op.inputs.iter().chain(&op.outputs);
    let have_kernels = tensors.all(|tensor| tensor.dtype == DType::U8 || element(tensor).is_some());
    if !are_cubes::<B>() || !have_kernels || op.op == Float8Op::Stack {
        return false;
    }
    warn_emulated();
    let inputs: Vec<CubeTensor> = op.inputs.iter().map(|tensor| take(cx, tensor)).collect();
    let client = inputs[0].client.clone();
    let elements = |input: usize| Elements {
        handle: inputs[input].handle.clone(),
        element: element(&op.inputs[input]).expect("asked for above"),
    };
    let shape = |input: usize| op.inputs[input].shape.as_slice();
    let handle = match op.op {
        Float8Op::Amax(of) => float8::amax(&client, &elements(0), Tiles::of(of, shape(0))),
        Float8Op::Scale {
            format,
            power_of_two,
        } => {
            let count = op.out().shape.num_elements();
            float8::scale(&client, &inputs[0].handle, count, format, power_of_two)
        }
        Float8Op::Quantize {
            of, format, ways, ..
        } => {
            let (tiles, form) = (Tiles::of(of, shape(0)), form(op.out()));
            let scales = &inputs[1].handle;
            let made = float8::quantize(&client, &elements(0), scales, tiles, format, form);
            let count = if ways == Ways::Both { 2 } else { 1 };
            for out in op.outputs.iter().take(count) {
                put::<B, E>(cx, &inputs[0], out, made.clone());
            }
            return true;
        }
        Float8Op::Product {
            product,
            scales,
            formats,
        } => {
            let operand = |input: usize, is_last_inner: bool| Operand {
                values: &inputs[input].handle,
                scales: &inputs[input + 2].handle,
                tiles: Tiles::of(scales[input], shape(input)),
                format: formats[input],
                is_last_inner,
            };
            let operands = match product {
                Product::Forward => [operand(0, true), operand(1, false)],
                // The weight comes first, and makes the columns of the result.
                Product::Input => [operand(1, true), operand(0, true)],
                Product::Weight => [operand(0, false), operand(1, false)],
            };
            let bias = (inputs.len() > 4).then(|| elements(4));
            let out = element(op.out()).expect("asked for above");
            let form = form(&op.inputs[0]);
            float8::product(&client, operands, bias.as_ref(), form, out)
        }
        Float8Op::Stack | Float8Op::ProductOfRank { .. } => {
            unreachable!("left to others above")
        }
    };
    put::<B, E>(cx, &inputs[0], op.out(), handle);
    true
}

/// Returns false: kernels take tensors by rows.
pub(super) fn turns<B: BackendIr>(_: &B::Device) -> bool {
    false
}

/// Returns what products run by on a device.
pub(super) fn runs_by<B: BackendIr>(_: &B::Device) -> Option<String> {
    are_cubes::<B>().then(|| "CubeCL's kernel".into())
}

/// Returns whether tensors of a backend are CubeCL's, without burn-fusion's around them.
fn are_cubes<B: BackendIr>() -> bool {
    TypeId::of::<B::Handle>() == TypeId::of::<CubeTensor>()
}

/// The type of elements that kernels read.
fn element(tensor: &TensorIr) -> Option<Element> {
    match tensor.dtype {
        DType::F32 | DType::Flex32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

/// How values in 8 bits are stored.
fn form(tensor: &TensorIr) -> Form {
    match tensor.dtype {
        DType::U8 => Form::Bytes,
        _ => Form::Grid,
    }
}

/// Takes a tensor, its elements one after the other.
fn take<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, tensor: &TensorIr) -> CubeTensor {
    let taken = downcast(cx.env.take(tensor)).map_err(|_: B::Handle| ());
    let taken: CubeTensor = taken.expect("types were compared");
    into_contiguous(taken)
}

/// Puts what was made beside a tensor.
fn put<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    beside: &CubeTensor,
    out: &TensorIr,
    handle: Handle,
) {
    let (client, device) = (beside.client.clone(), beside.device.clone());
    let made = CubeTensor::new_contiguous(client, device, out.shape.clone(), handle, out.dtype);
    let made = downcast(made).map_err(|_: CubeTensor| ());
    cx.env.put(out, made.expect("types were compared"));
}
