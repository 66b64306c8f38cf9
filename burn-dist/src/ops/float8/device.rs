//! Operations of float8 as kernels, where tensors are CubeCL's.

use std::any::TypeId;

use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "cuda")]
use burn_dist_kernels::cuda::run as cuda;
use burn_dist_kernels::float8::{self, Form, Operand, Tiles};
use burn_dist_kernels::{Element, Elements};
use burn_dist_plan::float8::{Float8Op, Product};
use burn_dist_plan::policy::Fp8;
use burn_std::DType;

use super::super::family::prelude::*;
use super::super::flex::downcast;
use super::{Float8, warn_emulated};

/// Runs an operation, and returns whether it did: if tensors of `B` are CubeCL's, without burn-fusion's around them, and
/// there are kernels for their types.
pub(super) fn run<B: BackendIr, E: Env<B>>(op: &Float8, cx: &mut Context<'_, B, E>) -> bool {
    on_cuda(op, cx) || on_wgpu(op, cx)
}

#[cfg(feature = "wgpu")]
fn on_wgpu<B: BackendIr, E: Env<B>>(op: &Float8, cx: &mut Context<'_, B, E>) -> bool {
    run_on::<burn_wgpu::WgpuRuntime, B, E>(op, cx)
}

#[cfg(not(feature = "wgpu"))]
fn on_wgpu<B: BackendIr, E: Env<B>>(_: &Float8, _: &mut Context<'_, B, E>) -> bool {
    false
}

#[cfg(feature = "cuda")]
fn on_cuda<B: BackendIr, E: Env<B>>(op: &Float8, cx: &mut Context<'_, B, E>) -> bool {
    run_on::<burn_cubecl::cubecl::cuda::CudaRuntime, B, E>(op, cx)
}

#[cfg(not(feature = "cuda"))]
fn on_cuda<B: BackendIr, E: Env<B>>(_: &Float8, _: &mut Context<'_, B, E>) -> bool {
    false
}

fn run_on<R: Kernels, B: BackendIr, E: Env<B>>(op: &Float8, cx: &mut Context<'_, B, E>) -> bool {
    let are_cubes = TypeId::of::<B::Handle>() == TypeId::of::<CubeTensor<R>>();
    let mut tensors = op.inputs.iter().chain([&op.out]);
    let have_kernels = tensors.all(|tensor| tensor.dtype == DType::U8 || element(tensor).is_some());
    if !are_cubes || !have_kernels || op.op == Float8Op::Stack {
        return false;
    }
    if !R::IS_NATIVE {
        warn_emulated();
    }
    let inputs: Vec<CubeTensor<R>> = op.inputs.iter().map(|tensor| take(cx, tensor)).collect();
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
            let count = op.out.shape.num_elements();
            float8::scale(&client, &inputs[0].handle, count, format, power_of_two)
        }
        Float8Op::Quantize { of, format, .. } => {
            let tiles = Tiles::of(of, shape(0));
            let (tensor, scales) = (&inputs[0], &inputs[1].handle);
            R::quantize(tensor, &elements(0), scales, tiles, format, form(&op.out))
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
            let out = element(&op.out).expect("asked for above");
            R::product(
                &inputs[0],
                operands,
                bias.as_ref(),
                form(&op.inputs[0]),
                out,
            )
        }
        Float8Op::Stack | Float8Op::ProductOfRank { .. } => {
            unreachable!("left to others above")
        }
    };
    put::<R, B, E>(cx, &inputs[0], &op.out, handle);
    true
}

/// A runtime, and how it casts and multiplies; the tensor tells the device.
trait Kernels: CubeRuntime {
    /// Whether devices may have instructions for float8.
    const IS_NATIVE: bool = false;

    fn quantize(
        tensor: &CubeTensor<Self>,
        values: &Elements,
        scales: &Handle,
        tiles: Tiles,
        format: Fp8,
        form: Form,
    ) -> Handle {
        float8::quantize(&tensor.client, values, scales, tiles, format, form)
    }

    fn product(
        tensor: &CubeTensor<Self>,
        operands: [Operand<'_>; 2],
        bias: Option<&Elements>,
        form: Form,
        out: Element,
    ) -> Handle {
        float8::product(&tensor.client, operands, bias, form, out)
    }
}

#[cfg(feature = "wgpu")]
impl Kernels for burn_wgpu::WgpuRuntime {}

/// The device's own casts, and the engine that is chosen for a product.
#[cfg(feature = "cuda")]
impl Kernels for burn_cubecl::cubecl::cuda::CudaRuntime {
    const IS_NATIVE: bool = true;

    fn quantize(
        tensor: &CubeTensor<Self>,
        values: &Elements,
        scales: &Handle,
        tiles: Tiles,
        format: Fp8,
        form: Form,
    ) -> Handle {
        let client = &tensor.client;
        match cuda::known_device(&tensor.device) {
            Some(device) => cuda::linear::quantize(client, &device, values, scales, tiles, format),
            None => float8::quantize(client, values, scales, tiles, format, form),
        }
    }

    fn product(
        tensor: &CubeTensor<Self>,
        operands: [Operand<'_>; 2],
        bias: Option<&Elements>,
        form: Form,
        out: Element,
    ) -> Handle {
        let client = &tensor.client;
        match cuda::known_device(&tensor.device) {
            Some(device) => cuda::linear::product(client, &device, operands, bias, out).0,
            None => float8::product(client, operands, bias, form, out),
        }
    }
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
fn take<R: CubeRuntime, B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    tensor: &TensorIr,
) -> CubeTensor<R> {
    let taken = downcast(cx.env.take(tensor)).map_err(|_: B::Handle| ());
    let taken: CubeTensor<R> = taken.expect("types were compared");
    match tensor.shape.num_elements() {
        // A copy would be a kernel without threads.
        0 => taken,
        _ => into_contiguous(taken),
    }
}

/// Puts what was made beside a tensor.
fn put<R: CubeRuntime, B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    beside: &CubeTensor<R>,
    out: &TensorIr,
    handle: Handle,
) {
    let (client, device) = (beside.client.clone(), beside.device.clone());
    let made = CubeTensor::new_contiguous(client, device, out.shape.clone(), handle, out.dtype);
    let made = downcast(made).map_err(|_: CubeTensor<R>| ());
    cx.env.put(out, made.expect("types were compared"));
}
