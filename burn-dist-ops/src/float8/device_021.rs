//! Operations of float8 as kernels, where tensors are CubeCL's.

#[cfg(feature = "cuda")]
use std::any::Any;
use std::any::TypeId;

use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "cuda")]
use burn_dist_cubecl::cuda;
use burn_dist_cubecl::float8::{self, Form, Operand, Tiles};
use burn_dist_cubecl::{Element, Elements};
use burn_dist_plan::float8::{Float8Op, Product, Ways};
use burn_dist_plan::policy::Fp8;
use burn_std::{DType, Metadata};

use super::super::family::prelude::*;
use super::{Float8, warn_emulated};
use crate::burn::downcast;

/// Runs an operation, and returns whether it did: if tensors of `B` are CubeCL's, without burn-fusion's around them,
/// and there are kernels for their types.
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

/// Returns whether products of a device add up along rows: those of NVIDIA's tensor cores for float8, whose engines
/// take nothing else.
#[cfg(feature = "cuda")]
pub(super) fn turns<B: BackendIr>(device: &B::Device) -> bool {
    gpu::<B>(device).is_some_and(|gpu| cuda::linear::casts_by_instruction(&gpu))
}

/// Returns what engines ask of a device, if it is CUDA's.
#[cfg(feature = "cuda")]
fn gpu<B: BackendIr>(device: &B::Device) -> Option<burn_dist_kernels::cuda::engine::Device> {
    use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};

    let device = (device as &dyn Any).downcast_ref::<CudaDevice>();
    let device = device.filter(|_| are_cubes::<CudaRuntime, B>());
    device.and_then(cuda::known_device)
}

/// Returns whether tensors of a backend are CubeCL's, without burn-fusion's around them.
fn are_cubes<R: CubeRuntime, B: BackendIr>() -> bool {
    TypeId::of::<B::Handle>() == TypeId::of::<CubeTensor<R>>()
}

/// Returns what products run by on a device: engines of CUDA, or the kernel that all devices have.
pub(super) fn runs_by<B: BackendIr>(device: &B::Device) -> Option<String> {
    on_gpu::<B>(device).or_else(|| has_kernels::<B>(device).then(|| "CubeCL's kernel".into()))
}

#[cfg(feature = "cuda")]
fn on_gpu<B: BackendIr>(device: &B::Device) -> Option<String> {
    gpu::<B>(device).map(|gpu| cuda::by_scaling(&gpu))
}

#[cfg(not(feature = "cuda"))]
fn on_gpu<B: BackendIr>(_: &B::Device) -> Option<String> {
    None
}

#[cfg(feature = "wgpu")]
fn has_kernels<B: BackendIr>(_: &B::Device) -> bool {
    are_cubes::<burn_wgpu::WgpuRuntime, B>()
}

#[cfg(not(feature = "wgpu"))]
fn has_kernels<B: BackendIr>(_: &B::Device) -> bool {
    false
}

/// Returns false: kernels of wgpu take tensors by rows.
#[cfg(not(feature = "cuda"))]
pub(super) fn turns<B: BackendIr>(_: &B::Device) -> bool {
    false
}

fn run_on<R: Kernels, B: BackendIr, E: Env<B>>(op: &Float8, cx: &mut Context<'_, B, E>) -> bool {
    let mut tensors = op.inputs.iter().chain(&op.outputs);
    let have_kernels = tensors.all(|tensor| tensor.dtype == DType::U8 || element(tensor).is_some());
    if !are_cubes::<R, B>() || !have_kernels || op.op == Float8Op::Stack {
        return false;
    }
    if !R::IS_NATIVE {
        warn_emulated();
    }
    // Operands of a product may lie by columns.
    let operands = match op.op {
        Float8Op::Product { .. } => 2,
        _ => 0,
    };
    let inputs = op.inputs.iter().enumerate();
    let inputs = inputs.map(|(index, tensor)| take(cx, tensor, index < operands));
    let inputs: Vec<CubeTensor<R>> = inputs.collect();
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
            let cast = Cast {
                tiles: Tiles::of(of, shape(0)),
                format,
                form: form(op.out()),
                ways,
            };
            let made = R::quantize(&inputs[0], &elements(0), &inputs[1].handle, cast);
            for (out, made) in op.outputs.iter().zip(made) {
                put::<R, B, E>(cx, &inputs[0], out, made);
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
            let (order, operands) = match product {
                Product::Forward => ([0, 1], [operand(0, true), operand(1, false)]),
                // The weight comes first, and makes the columns of the result.
                Product::Input => ([1, 0], [operand(1, true), operand(0, true)]),
                Product::Weight => ([0, 1], [operand(0, false), operand(1, false)]),
            };
            let are_turned = order.map(|input: usize| R::is_turned(&inputs[input]));
            let bias = (inputs.len() > 4).then(|| elements(4));
            let out = element(op.out()).expect("asked for above");
            let form = form(&op.inputs[0]);
            R::product(&inputs[0], operands, are_turned, bias.as_ref(), form, out)
        }
        Float8Op::Stack | Float8Op::ProductOfRank { .. } => {
            unreachable!("left to others above")
        }
    };
    put::<R, B, E>(cx, &inputs[0], op.out(), Bits::by_rows(handle));
    true
}

/// How a tensor is cast.
#[derive(Clone, Copy)]
struct Cast {
    tiles: Tiles,
    format: Fp8,
    form: Form,
    ways: Ways,
}

/// A result, and whether it lies by columns.
struct Bits {
    handle: Handle,
    is_turned: bool,
}

impl Bits {
    fn by_rows(handle: Handle) -> Self {
        Self {
            handle,
            is_turned: false,
        }
    }
}

/// Returns the strides of a tensor that lies by columns: what is along the last dim is as far apart as there are rows,
/// which are all other dims.
fn turned(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    let mut rows = 1;
    for dim in (0..shape.len().saturating_sub(1)).rev() {
        strides[dim] = rows;
        rows *= shape[dim];
    }
    if let Some(last) = strides.last_mut() {
        *last = rows;
    }
    strides
}

/// Returns whether a tensor lies by columns, in sizes that kernels turn round.
#[cfg(any(feature = "cuda", test))]
fn is_turned(shape: &[usize], strides: &[usize]) -> bool {
    let Some((columns, rows)) = shape.split_last() else {
        return false;
    };
    let rows: usize = rows.iter().product();
    let fits = [rows, *columns]
        .iter()
        .all(|size| size.is_multiple_of(16) && *size > 0);
    fits && turned(shape) == strides
}

/// A runtime, and how it casts and multiplies; the tensor tells the device.
trait Kernels: CubeRuntime {
    /// True if devices may have instructions for float8.
    const IS_NATIVE: bool = false;

    /// Returns whether products take a tensor by columns as it is.
    fn is_turned(_: &CubeTensor<Self>) -> bool {
        false
    }

    /// Returns one for each result; by rows, whatever is asked for.
    fn quantize(
        tensor: &CubeTensor<Self>,
        values: &Elements,
        scales: &Handle,
        cast: Cast,
    ) -> Vec<Bits> {
        let Cast {
            tiles,
            format,
            form,
            ways,
        } = cast;
        let made = float8::quantize(&tensor.client, values, scales, tiles, format, form);
        let count = if ways == Ways::Both { 2 } else { 1 };
        (0..count).map(|_| Bits::by_rows(made.clone())).collect()
    }

    fn product(
        tensor: &CubeTensor<Self>,
        operands: [Operand<'_>; 2],
        _: [bool; 2],
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

    fn is_turned(tensor: &CubeTensor<Self>) -> bool {
        tensor.dtype == DType::U8
            && is_turned(tensor.meta.shape().as_slice(), &tensor.meta.strides()[..])
            && cuda::known_device(&tensor.device).is_some()
    }

    fn quantize(
        tensor: &CubeTensor<Self>,
        values: &Elements,
        scales: &Handle,
        cast: Cast,
    ) -> Vec<Bits> {
        let client = &tensor.client;
        let Cast {
            tiles,
            format,
            form,
            ways,
        } = cast;
        let ways = match ways {
            Ways::AsIs => &[false][..],
            Ways::Turned => &[true],
            Ways::Both => &[false, true],
        };
        let by_instruction = cuda::known_device(&tensor.device).and_then(|device| {
            cuda::linear::quantize(client, &device, values, scales, tiles, format, ways)
        });
        match by_instruction {
            Some(made) => {
                let made = made.into_iter().zip(ways);
                made.map(|(handle, is_turned)| Bits {
                    handle,
                    is_turned: *is_turned,
                })
                .collect()
            }
            None => {
                let made = float8::quantize(client, values, scales, tiles, format, form);
                ways.iter().map(|_| Bits::by_rows(made.clone())).collect()
            }
        }
    }

    fn product(
        tensor: &CubeTensor<Self>,
        operands: [Operand<'_>; 2],
        are_turned: [bool; 2],
        bias: Option<&Elements>,
        form: Form,
        out: Element,
    ) -> Handle {
        let client = &tensor.client;
        match cuda::known_device(&tensor.device) {
            Some(device) => {
                cuda::linear::product(client, &device, operands, are_turned, bias, out).0
            }
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

/// Takes a tensor, its elements one after the other; or by columns, if it lies so and `may_be_turned`.
fn take<R: Kernels, B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    tensor: &TensorIr,
    may_be_turned: bool,
) -> CubeTensor<R> {
    let taken = downcast(cx.env.take(tensor)).map_err(|_: B::Handle| ());
    let taken: CubeTensor<R> = taken.expect("types were compared");
    match may_be_turned && R::is_turned(&taken) {
        true => taken,
        false => into_contiguous(taken),
    }
}

/// Puts what was made beside a tensor.
fn put<R: CubeRuntime, B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    beside: &CubeTensor<R>,
    out: &TensorIr,
    made: Bits,
) {
    let (client, device) = (beside.client.clone(), beside.device.clone());
    let (shape, handle) = (out.shape.clone(), made.handle);
    let made = match made.is_turned {
        true => {
            let strides = turned(shape.as_slice());
            let meta = Metadata::new(shape, strides);
            CubeTensor::new(client, handle, meta, device, out.dtype)
        }
        false => CubeTensor::new_contiguous(client, device, shape, handle, out.dtype),
    };
    let made = downcast(made).map_err(|_: CubeTensor<R>| ());
    cx.env.put(out, made.expect("types were compared"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_columns() {
        assert_eq!(turned(&[32, 48]), [1, 32]);
        // Rows are the positions of both sequences.
        assert_eq!(turned(&[2, 16, 48]), [16, 1, 32]);
        for shape in [&[32, 48][..], &[2, 16, 48], &[2, 3, 16, 16]] {
            assert!(is_turned(shape, &turned(shape)));
        }
        // By rows; of sizes that are not turned round; of a transposed matrix, in another order of positions.
        assert!(!is_turned(&[32, 48], &[48, 1]));
        assert!(!is_turned(&[30, 48], &[1, 30]));
        assert!(!is_turned(&[2, 16, 48], &[1, 2, 32]));
        assert!(!is_turned(&[2, 16, 48], &[768, 1, 16]));
        assert!(!is_turned(&[], &[]));
    }
}
