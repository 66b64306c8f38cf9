//! Cases, on the host and on a device.

use burn_dist_cubecl::Client;
use burn_dist_cubecl::region::{self, Draw, Operand};
use burn_dist_kernels::region::programs::{Array, Case};
use burn_dist_kernels::region::{Kernel, Memory, Operand as HostOperand, Output};
use burn_dist_mesh::DType;
use burn_dist_plan::region::{Extent, Formula, Keep, Region, Typed};

/// Bytes that lie as any element may.
struct Aligned(Vec<u128>, usize);

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![0u128; bytes.len().div_ceil(16)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self(lines, bytes.len())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..self.1]
    }
}

/// The bytes of each result.
fn sizes(region: &Region) -> Vec<usize> {
    let results = region.formula.results.iter().enumerate();
    results
        .map(|(result, register)| {
            let elements: usize = region.result_shape(result).iter().product();
            elements * region.formula.dtype(*register).size()
        })
        .collect()
}

pub(super) fn on_host(case: &Case) -> Vec<Vec<u8>> {
    let memories = case.operands.iter().map(|array| Aligned::new(&array.bytes));
    let mut memories: Vec<Aligned> = memories.collect();
    let mut operands: Vec<HostOperand<'_>> = case
        .operands
        .iter()
        .zip(&mut memories)
        .map(|(array, memory)| HostOperand {
            memory: Memory::Shared(memory.bytes_mut()),
            offset: array.offset,
            strides: &array.strides,
        })
        .collect();
    let made = sizes(&case.region);
    let mut made: Vec<Aligned> = made
        .into_iter()
        .map(|size| Aligned::new(&vec![0xa5; size]))
        .collect();
    let mut outputs: Vec<Output<'_>> = made
        .iter_mut()
        .map(|made| {
            let bytes = made.bytes_mut();
            // SAFETY: bytes that are there are bytes that may be there.
            let places =
                unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) };
            Output::New(places)
        })
        .collect();
    Kernel::new(&case.region)
        .unwrap()
        .run(&mut operands, &case.scalars, &mut outputs)
        .unwrap();
    made.iter_mut()
        .map(|made| made.bytes_mut().to_vec())
        .collect()
}

pub(super) fn on_device<C: Client>(client: &C, case: &Case) -> Vec<Vec<u8>> {
    drawing_on_device(client, case, &[])
}

/// Runs a case that draws.
pub(super) fn drawing_on_device<C: Client>(
    client: &C,
    case: &Case,
    draws: &[Draw],
) -> Vec<Vec<u8>> {
    let operands = case.operands.iter().map(|array| {
        let size = array.dtype.size();
        let mut bytes = array.bytes[array.offset * size..].to_vec();
        bytes.resize(bytes.len().next_multiple_of(4).max(4), 0);
        let strides = array.strides.iter();
        Operand {
            handle: client.cubecl().create_from_slice(&bytes),
            strides: strides.map(|stride| *stride as usize).collect(),
        }
    });
    let operands: Vec<Operand> = operands.collect();
    let made = region::run(client, &case.region, &operands, &case.scalars, draws);
    let made = made.into_iter().zip(sizes(&case.region));
    made.map(|(handle, size)| match size {
        0 => Vec::new(),
        _ => client.cubecl().read_one_unchecked(handle)[..size].to_vec(),
    })
    .collect()
}

/// Floats as f32; nothing of other types.
pub(super) fn float(dtype: DType, bytes: &[u8]) -> Option<f32> {
    match dtype {
        DType::F32 => Some(f32::from_ne_bytes(bytes.try_into().unwrap())),
        DType::F16 => Some(half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32()),
        DType::BF16 => Some(half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32()),
        _ => None,
    }
}

/// Checks bytes of elements; which NaN it is, nothing promises.
pub(super) fn assert_same(case: &Case, found: &[Vec<u8>], expected: &[Vec<u8>], what: &str) {
    let region = &case.region;
    for (result, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: result {result}");
        let dtype = region.formula.dtype(region.formula.results[result]);
        let size = dtype.size();
        for (at, (one, other)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
            let are_nan = || {
                let is_nan = |bytes| float(dtype, bytes).is_some_and(f32::is_nan);
                is_nan(one) && is_nan(other)
            };
            assert!(
                one == other || are_nan(),
                "{what}: result {result} at {at} is {one:x?} ({:?}), not {other:x?} ({:?}), of {region:#?}",
                float(dtype, one),
                float(dtype, other),
            );
        }
    }
}

/// A case of rows of `len` elements, whose result is that of the last instruction.
pub(super) fn plain(
    space: &[usize],
    operands: Vec<(DType, Vec<u8>)>,
    typed: Vec<Typed>,
    keep: Keep,
) -> Case {
    let last = operands.len() + typed.len() - 1;
    Case {
        region: Region {
            space: space.to_vec(),
            spans: operands.iter().map(|_| vec![true; space.len()]).collect(),
            formula: Formula {
                operands: operands.iter().map(|(dtype, _)| *dtype).collect(),
                instructions: typed,
                results: vec![last as u32],
            },
            scalars: 0,
            keeps: vec![keep],
        },
        operands: operands
            .into_iter()
            .map(|(dtype, bytes)| in_order(space, dtype, bytes))
            .collect(),
        scalars: Vec::new(),
    }
}

pub(super) const EACH: Keep = Keep::Each(Extent::Elements);

/// An operand whose elements lie one after the other.
pub(super) fn in_order(space: &[usize], dtype: DType, bytes: Vec<u8>) -> Array {
    let mut strides = vec![1; space.len()];
    for dim in (1..space.len()).rev() {
        strides[dim - 1] = strides[dim] * space[dim] as isize;
    }
    Array {
        dtype,
        bytes,
        offset: 0,
        strides,
    }
}

pub(super) fn f32s(values: impl IntoIterator<Item = f32>) -> (DType, Vec<u8>) {
    let bytes = values.into_iter().flat_map(f32::to_ne_bytes).collect();
    (DType::F32, bytes)
}

pub(super) fn to_f32s(bytes: &[u8]) -> Vec<f32> {
    let floats = bytes.chunks(4);
    floats
        .map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()))
        .collect()
}
