//! Tensor maps: what a kernel's copies of boxes of a tensor go by, on a device of compute capability 9.0 or later.

use super::{call, put};
use crate::fault::Fault;
use crate::setup::setup;
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Status};
use std::ffi::c_void;

/// As in `software_tensor_map.h`; the first dim is the one whose elements lie side by side.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Map {
    address: u64,
    /// Bytes from one element to the next of each dim after the first.
    strides: [u64; 4],
    sizes: [u32; 5],
    /// The corners of the box in which a pixel lies, as distances from those of the dims but the first and the last.
    lower: [i16; 3],
    upper: [i16; 3],
    /// Elements of a box; of pixels, channels and how many pixels.
    bounds: [u16; 5],
    dims: u8,
    element_bytes: u8,
    by_pixels: u8,
}

/// `CUtensorMap`.
#[repr(C, align(64))]
pub(crate) struct TensorMap {
    map: Map,
    rest: [u8; 128 - size_of::<Map>()],
}

/// Bytes of an element, by `CUtensorMapDataType`: those of 4 and 6 bits are not here.
const ELEMENT_BYTES: [u8; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];

fn wrong(what: impl Into<String>) -> Fault {
    Fault::new(INVALID_VALUE, what)
}

/// What both ways of making one begin with: a tensor, as NVIDIA's documentation limits it.
///
/// # Safety
/// As NVIDIA's: each pointer is to a number for each dim, that of the strides to one less.
unsafe fn tensor(
    kind: u32,
    dims: u32,
    address: u64,
    sizes: *const u64,
    strides: *const u64,
    steps: *const u32,
    how: [u32; 4],
) -> Result<Map, Fault> {
    if setup().capability < (9, 0) {
        return Err(Fault::new(
            NOT_SUPPORTED,
            "tensor maps need compute capability 9.0",
        ));
    }
    let Some(element_bytes) = ELEMENT_BYTES.get(kind as usize).copied() else {
        return Err(Fault::new(
            NOT_SUPPORTED,
            "elements below 8 bits are not here",
        ));
    };
    let [interleave, swizzle, _, fill] = how;
    if (interleave, swizzle, fill) != (0, 0, 0) {
        let text = "interleaved and swizzled boxes, and those filled up with NaN, are not here";
        return Err(Fault::new(NOT_SUPPORTED, text));
    }
    if !(1..=5).contains(&dims) {
        return Err(wrong(format!("{dims} dims")));
    }
    if !address.is_multiple_of(16) {
        return Err(wrong(format!("{address:#x} is not a multiple of 16")));
    }
    if [sizes.cast::<()>(), steps.cast()]
        .iter()
        .any(|list| list.is_null())
    {
        return Err(INVALID_VALUE.into());
    }
    let dims = dims as usize;
    let mut map = Map {
        address,
        dims: dims as u8,
        element_bytes,
        ..Map::default()
    };
    // SAFETY: the caller's promise.
    let (sizes, steps) = unsafe {
        (
            std::slice::from_raw_parts(sizes, dims),
            std::slice::from_raw_parts(steps, dims),
        )
    };
    for (to, size) in map.sizes.iter_mut().zip(sizes) {
        *to = u32::try_from(*size)
            .ok()
            .filter(|size| *size > 0)
            .ok_or_else(|| wrong(format!("a dim of {size} elements")))?;
    }
    if let Some(step) = steps.iter().find(|step| **step != 1) {
        return match step {
            2..=8 => Err(Fault::new(
                NOT_SUPPORTED,
                "steps over elements are not here",
            )),
            _ => Err(wrong(format!("steps of {step} elements"))),
        };
    }
    if dims > 1 {
        if strides.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller's promise.
        let strides = unsafe { std::slice::from_raw_parts(strides, dims - 1) };
        for (to, stride) in map.strides.iter_mut().zip(strides) {
            if !stride.is_multiple_of(16) || *stride >= 1 << 40 {
                return Err(wrong(format!("a stride of {stride} bytes")));
            }
            *to = *stride;
        }
    }
    Ok(map)
}

/// Checks the bounds of a box.
fn bounded(map: &Map) -> Result<(), Fault> {
    let bounds = &map.bounds[..usize::from(map.dims)];
    let most = |dim| {
        if map.by_pixels == 1 && dim == 1 {
            1024
        } else {
            256
        }
    };
    let outside = |(dim, bound): &(usize, &u16)| !(1..=most(*dim)).contains(*bound);
    if let Some((_, bound)) = bounds.iter().enumerate().find(outside) {
        return Err(wrong(format!("{bound} elements of a box")));
    }
    let row = u32::from(bounds[0]) * u32::from(map.element_bytes);
    match row.is_multiple_of(16) {
        true => Ok(()),
        false => Err(wrong(format!("rows of {row} bytes in a box"))),
    }
}

/// # Safety
/// As NVIDIA's: each pointer is to a number for each dim, that of the strides to one less.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuTensorMapEncodeTiled(
    to: *mut TensorMap,
    kind: u32,
    dims: u32,
    address: *mut c_void,
    sizes: *const u64,
    strides: *const u64,
    bounds: *const u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Status {
    call("cuTensorMapEncodeTiled", || {
        let how = [interleave, swizzle, promotion, fill];
        // SAFETY: the caller's promise.
        let mut map = unsafe { tensor(kind, dims, address as u64, sizes, strides, steps, how) }?;
        if bounds.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller's promise.
        let bounds = unsafe { std::slice::from_raw_parts(bounds, dims as usize) };
        for (to, bound) in map.bounds.iter_mut().zip(bounds) {
            *to = u16::try_from(*bound).unwrap_or(0);
        }
        bounded(&map)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, TensorMap::new(map)) }
    })
}

/// # Safety
/// As NVIDIA's: each pointer is to a number for each dim, that of the strides to one less, those of the corners to two
/// less.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuTensorMapEncodeIm2col(
    to: *mut TensorMap,
    kind: u32,
    dims: u32,
    address: *mut c_void,
    sizes: *const u64,
    strides: *const u64,
    lower: *const i32,
    upper: *const i32,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
) -> Status {
    call("cuTensorMapEncodeIm2col", || {
        let how = [interleave, swizzle, promotion, fill];
        // SAFETY: the caller's promise.
        let mut map = unsafe { tensor(kind, dims, address as u64, sizes, strides, steps, how) }?;
        if !(3..=5).contains(&dims) {
            return Err(wrong(format!("{dims} dims of pixels")));
        }
        if lower.is_null() || upper.is_null() {
            return Err(INVALID_VALUE.into());
        }
        for (from, to) in [(lower, &mut map.lower), (upper, &mut map.upper)] {
            // SAFETY: the caller's promise.
            let corner = unsafe { std::slice::from_raw_parts(from, dims as usize - 2) };
            for (to, distance) in to.iter_mut().zip(corner) {
                *to = i16::try_from(*distance)
                    .map_err(|_| wrong(format!("a corner {distance} elements off")))?;
            }
        }
        let counts = [channels, pixels].map(|count| u16::try_from(count).unwrap_or(0));
        map.bounds = [counts[0], counts[1], 1, 1, 1];
        map.by_pixels = 1;
        bounded(&map)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, TensorMap::new(map)) }
    })
}

impl TensorMap {
    fn new(map: Map) -> Self {
        TensorMap {
            map,
            rest: [0; 128 - size_of::<Map>()],
        }
    }
}
