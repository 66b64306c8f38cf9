//! Copies of boxes of tensors, by the maps that came with compute capability 9.0; before, there are none.

use cuda_in_software::{Gpu, filled, floats, kernel, read};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

type Made = Result<sys::CUtensorMap, sys::CUresult>;

fn ascending(count: usize) -> Vec<f32> {
    (0..count).map(|at| at as f32).collect()
}

/// How elements lie, and what is read where there are none: side by side, and zeros.
const HOW: (
    sys::CUtensorMapInterleave,
    sys::CUtensorMapSwizzle,
    sys::CUtensorMapL2promotion,
    sys::CUtensorMapFloatOOBfill,
) = (
    sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
    sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
    sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
);

const F32: sys::CUtensorMapDataType = sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

/// One element after the other.
const STEPS: [u32; 5] = [1; 5];

fn made(result: sys::CUresult, map: MaybeUninit<sys::CUtensorMap>) -> Made {
    match result {
        // SAFETY: the driver has written it.
        sys::CUresult::CUDA_SUCCESS => Ok(unsafe { map.assume_init() }),
        failed => Err(failed),
    }
}

/// A map of 8 x 12 floats, in boxes of 2 rows.
fn boxes(of: u64, columns: u32) -> Made {
    let mut map = MaybeUninit::zeroed();
    let (sizes, strides, bounds) = ([12_u64, 8], [48_u64], [columns, 2]);
    // SAFETY: each list has a number for each dim.
    let result = unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            F32,
            2,
            of as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            bounds.as_ptr(),
            STEPS.as_ptr(),
            HOW.0,
            HOW.1,
            HOW.2,
            HOW.3,
        )
    };
    made(result, map)
}

/// A map of 2 images of 3 x 3 pixels with 4 channels each, with a border of 1 on the one side, as a filter of 2 x 2 wants
/// it: in columns of 8.
fn pixels(of: u64) -> Made {
    let mut map = MaybeUninit::zeroed();
    let (sizes, strides) = ([4_u64, 3, 3, 2], [16_u64, 48, 144]);
    let (lower, upper) = ([-1_i32; 2], [-1_i32; 2]);
    // SAFETY: each list has a number for each dim.
    let result = unsafe {
        sys::cuTensorMapEncodeIm2col(
            map.as_mut_ptr(),
            F32,
            4,
            of as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            lower.as_ptr(),
            upper.as_ptr(),
            4,
            8,
            STEPS.as_ptr(),
            HOW.0,
            HOW.1,
            HOW.2,
            HOW.3,
        )
    };
    made(result, map)
}

/// Whether there are tensor maps on this device.
fn are_here() -> bool {
    let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let device = result::device::get(0).expect("a device");
    // SAFETY: the device is there.
    unsafe { result::device::get_attribute(device, which) }.expect("a number") >= 9
}

fn run(text: &str, mut parameters: Vec<*mut c_void>) {
    let text = format!(
        "#include <cuda/barrier>\nstruct alignas(64) Map {{ unsigned long words[16]; }};\n{text}"
    );
    let kernel = kernel(&text, "copies").expect("a kernel");
    let one = (1, 1, 1);
    // SAFETY: the parameters are the kernel's.
    let launched =
        unsafe { result::launch_kernel(kernel, one, (32, 1, 1), 0, null_mut(), &mut parameters) };
    launched.expect("a launch");
}

fn parameter<T>(of: &T) -> *mut c_void {
    (&raw const *of).cast_mut().cast()
}

/// A box that begins in the last column: what is beyond is read as zeros, and is not written.
#[test]
fn boxes_are_copied_both_ways() {
    Gpu::open(0);
    let (from, to, seen) = (filled(&ascending(96)), filled(&[-1.0; 96]), floats(8));
    let (from_map, to_map) = (boxes(from, 4), boxes(to, 4));
    if !are_here() {
        let refused = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED;
        return assert_eq!(from_map.err(), Some(refused));
    }
    let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(boxes(from, 3).err(), Some(invalid), "rows of 12 bytes");
    assert_eq!(boxes(from + 4, 4).err(), Some(invalid), "not aligned");
    let (from_map, to_map) = (from_map.expect("a map"), to_map.expect("a map"));
    let text = r#"
    extern "C" __global__ void copies(const __grid_constant__ Map from, const __grid_constant__ Map to, float* seen) {
        namespace tensors = cuda::device::experimental;
        __shared__ cuda::barrier<cuda::thread_scope_block> full;
        __shared__ alignas(128) float box[8];
        if (threadIdx.x == 0) init(&full, blockDim.x);
        __syncthreads();
        if (threadIdx.x == 0) tensors::cp_async_bulk_tensor_2d_global_to_shared(box, &from, 11, 6, full);
        full.wait(cuda::device::barrier_arrive_tx(full, 1, threadIdx.x == 0 ? 32 : 0));
        if (threadIdx.x < 8) seen[threadIdx.x] = box[threadIdx.x];
        if (threadIdx.x == 0) tensors::cp_async_bulk_tensor_2d_shared_to_global(&to, 10, 0, box);
    }"#;
    let parameters = [parameter(&from_map), parameter(&to_map), parameter(&seen)];
    run(text, parameters.into());
    let cut = [83.0, 0.0, 0.0, 0.0, 95.0, 0.0, 0.0, 0.0];
    assert_eq!(read(seen, 8), Ok(cut.into()));
    let mut wanted = [-1.0; 96];
    (wanted[10], wanted[11], wanted[22], wanted[23]) = (83.0, 0.0, 95.0, 0.0);
    assert_eq!(read(to, 96), Ok(wanted.into()));
}

/// Nine pixels of an image, with the border: the column begins at the last but one, and goes on in the next image.
#[test]
fn columns_of_pixels_go_on_in_the_next_image() {
    Gpu::open(0);
    let (from, seen) = (filled(&ascending(72)), floats(32));
    let map = pixels(from);
    if !are_here() {
        let refused = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED;
        return assert_eq!(map.err(), Some(refused));
    }
    let map = map.expect("a map");
    // As CubeCL 0.10 writes it.
    let text = r#"
    extern "C" __global__ void copies(const __grid_constant__ Map from, float* seen) {
        __shared__ cuda::barrier<cuda::thread_scope_block> full;
        __shared__ alignas(128) float box[32];
        if (threadIdx.x == 0) init(&full, blockDim.x);
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned to = __cvta_generic_to_shared(box);
            unsigned barrier = __cvta_generic_to_shared(cuda::device::barrier_native_handle(full));
            unsigned long tensor = (unsigned long)&from;
            int channel = 0, x = 0, y = 1, image = 0;
            unsigned short right = 1, down = 0;
            asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier:"
                         ":complete_tx::bytes"
                         " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                         :
                         : "r"(to), "l"(tensor), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(image), "h"(right),
                           "h"(down)
                         : "memory");
        }
        full.wait(cuda::device::barrier_arrive_tx(full, 1, threadIdx.x == 0 ? 128 : 0));
        seen[threadIdx.x] = box[threadIdx.x];
    }"#;
    run(text, [parameter(&map), parameter(&seen)].into());
    // Corners of the filter, as (image, y, x), from (0, 1, 0) on; x and y go from -1 to 1. The element is one to the
    // right.
    let corners = [
        (0, 1, 0),
        (0, 1, 1),
        (1, -1, -1),
        (1, -1, 0),
        (1, -1, 1),
        (1, 0, -1),
        (1, 0, 0),
        (1, 0, 1),
    ];
    let wanted = corners.iter().flat_map(|(image, y, x)| {
        (0..4).map(move |channel| match *y {
            -1 => 0.0,
            _ => (((image * 3 + y) * 3 + x + 1) * 4 + channel) as f32,
        })
    });
    assert_eq!(read(seen, 32), Ok(wanted.collect::<Vec<f32>>()));
}
