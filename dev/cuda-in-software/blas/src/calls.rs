//! What programs call: NVIDIA's names and signatures.

use crate::number::Number;
use crate::product::{Description, Layout, Product, is_one, run};
use software_environment::{enter, note};
use software_meeting::{Part, meet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// `cublasStatus_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Status(u32);

const SUCCESS: Status = Status(0);
const INVALID_VALUE: Status = Status(7);
const EXECUTION_FAILED: Status = Status(13);
const NOT_SUPPORTED: Status = Status(15);

/// The version of CUDA 13.0's.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    note("cublasLtGetVersion");
    130_000
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusString(status: u32) -> *const c_char {
    note("cublasLtGetStatusString");
    let text = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        7 => c"CUBLAS_STATUS_INVALID_VALUE",
        13 => c"CUBLAS_STATUS_EXECUTION_FAILED",
        15 => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"CUBLAS_STATUS unknown",
    };
    text.as_ptr()
}

/// Writes a result.
///
/// # Safety
/// The pointer is null or to a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Status {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    SUCCESS
}

/// Releases what `put` has handed out in a box.
///
/// # Safety
/// The pointer is null or from `Box::into_raw`.
unsafe fn release<T>(of: *mut T) -> Status {
    if of.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(of) });
    SUCCESS
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtCreate(to: *mut *mut u8) -> Status {
    if let Some(status) = enter("cublasLtCreate") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { put(to, Box::into_raw(Box::new(0))) }
}

/// # Safety
/// As NVIDIA's: the handle is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtDestroy(handle: *mut u8) -> Status {
    if let Some(status) = enter("cublasLtDestroy") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { release(handle) }
}

/// `CUBLAS_COMPUTE_32F`, and `CUDA_R_32F` as the type of factors.
const COMPUTE_32F: u32 = 68;
const R_32F: u32 = 0;

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescCreate(
    to: *mut *mut Description,
    compute: u32,
    scale: u32,
) -> Status {
    if let Some(status) = enter("cublasLtMatmulDescCreate") {
        return Status(status);
    }
    if (compute, scale) != (COMPUTE_32F, R_32F) {
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller's promise.
    unsafe { put(to, Box::into_raw(Box::default())) }
}

/// # Safety
/// As NVIDIA's: the description is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescDestroy(of: *mut Description) -> Status {
    if let Some(status) = enter("cublasLtMatmulDescDestroy") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { release(of) }
}

/// `CUBLASLT_EPILOGUE_DEFAULT` and `_BIAS`.
const PLAIN: u64 = 1;
const BIAS: u64 = 4;

/// # Safety
/// As NVIDIA's: the pointers are to a description and to as many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    of: *mut Description,
    which: u32,
    value: *const u8,
    bytes: usize,
) -> Status {
    if let Some(status) = enter("cublasLtMatmulDescSetAttribute") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { of.as_mut() }) else {
        return INVALID_VALUE;
    };
    // The number of bytes of each attribute that is known.
    let wanted = match which {
        3 | 4 | 7 => 4,
        8 | 17 | 18 => 8,
        25 => 1,
        _ => return NOT_SUPPORTED,
    };
    if value.is_null() || bytes != wanted {
        return INVALID_VALUE;
    }
    let mut word = [0; 8];
    // SAFETY: the caller's promise.
    word[..bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(value, bytes) });
    let word = u64::from_le_bytes(word);
    match (which, word) {
        (3, 0 | 1) => of.turns_first = word == 1,
        (4, 0 | 1) => of.turns_second = word == 1,
        (7, PLAIN | BIAS) => of.adds_bias = word == BIAS,
        (3 | 4 | 7, _) => return NOT_SUPPORTED,
        (8, _) => of.bias = word,
        (17 | 18, _) => of.scales[which as usize - 17] = word,
        // Sums are as exact as they can be.
        _ => {}
    }
    SUCCESS
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut *mut Layout,
    kind: u32,
    rows: u64,
    columns: u64,
    stride: i64,
) -> Status {
    if let Some(status) = enter("cublasLtMatrixLayoutCreate") {
        return Status(status);
    }
    let Some(number) = Number::of(kind) else {
        return NOT_SUPPORTED;
    };
    let Ok(stride) = usize::try_from(stride) else {
        return INVALID_VALUE;
    };
    let layout = Layout {
        number,
        rows: rows as usize,
        columns: columns as usize,
        stride,
    };
    // SAFETY: the caller's promise.
    unsafe { put(to, Box::into_raw(Box::new(layout))) }
}

/// # Safety
/// As NVIDIA's: the layout is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutDestroy(of: *mut Layout) -> Status {
    if let Some(status) = enter("cublasLtMatrixLayoutDestroy") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { release(of) }
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceCreate(to: *mut *mut u8) -> Status {
    if let Some(status) = enter("cublasLtMatmulPreferenceCreate") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { put(to, Box::into_raw(Box::new(0))) }
}

/// # Safety
/// As NVIDIA's: the preference is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceDestroy(of: *mut u8) -> Status {
    if let Some(status) = enter("cublasLtMatmulPreferenceDestroy") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { release(of) }
}

/// What a program prefers changes nothing.
#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    of: *mut u8,
    _which: u32,
    value: *const c_void,
    _bytes: usize,
) -> Status {
    if let Some(status) = enter("cublasLtMatmulPreferenceSetAttribute") {
        return Status(status);
    }
    match of.is_null() || value.is_null() {
        true => INVALID_VALUE,
        false => SUCCESS,
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Found {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// What an algorithm is known by.
const ALGORITHM: u64 = 0x5_0f7;

/// # Safety
/// As NVIDIA's: the pointers are to what their types say, and to as many results.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: *mut u8,
    of: *const Description,
    first: *const Layout,
    second: *const Layout,
    _added: *const Layout,
    to: *const Layout,
    _preference: *const u8,
    wanted: c_int,
    results: *mut Found,
    count: *mut c_int,
) -> Status {
    if let Some(status) = enter("cublasLtMatmulAlgoGetHeuristic") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    let (of, first, second, to) =
        unsafe { (of.as_ref(), first.as_ref(), second.as_ref(), to.as_ref()) };
    let (Some(of), Some(first), Some(second), Some(to)) = (of, first, second, to) else {
        return INVALID_VALUE;
    };
    if !is_one(of, first, second, to) {
        return NOT_SUPPORTED;
    }
    if wanted < 1 || results.is_null() {
        return INVALID_VALUE;
    }
    let found = Found {
        algorithm: [ALGORITHM, 0, 0, 0, 0, 0, 0, 0],
        workspace: 0,
        state: SUCCESS,
        waves: 1.0,
        reserved: [0; 4],
    };
    // SAFETY: the caller's promise.
    unsafe {
        results.write(found);
        put(count, 1)
    }
}

/// A factor of what is added is to be zero: a result is not read.
///
/// # Safety
/// As NVIDIA's: the pointers are to what their types say, of the host but for those to elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    _handle: *mut u8,
    of: *const Description,
    alpha: *const f32,
    a: u64,
    first: *const Layout,
    b: u64,
    second: *const Layout,
    beta: *const f32,
    _c: u64,
    _added: *const Layout,
    d: u64,
    to: *const Layout,
    algorithm: *const [u64; 8],
    _workspace: u64,
    _bytes: usize,
    stream: usize,
) -> Status {
    if let Some(status) = enter("cublasLtMatmul") {
        return Status(status);
    }
    static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
    // SAFETY: the caller's promise.
    let given = unsafe {
        let layouts = (first.as_ref(), second.as_ref(), to.as_ref());
        (
            of.as_ref(),
            alpha.as_ref(),
            beta.as_ref(),
            algorithm.as_ref(),
            layouts,
        )
    };
    let (Some(of), Some(alpha), Some(beta), Some(algorithm), (Some(first), Some(second), Some(to))) =
        given
    else {
        return INVALID_VALUE;
    };
    if *beta != 0.0 || algorithm[0] != ALGORITHM || !is_one(of, first, second, to) {
        return NOT_SUPPORTED;
    }
    let product = Product {
        of: *of,
        alpha: *alpha,
        first: (a, *first),
        second: (b, *second),
        to: (d, *to),
    };
    let part = Part {
        key: NEXT.fetch_add(1, Ordering::Relaxed),
        member: 0,
        members: 1,
        body: run,
        ready: None,
        // The driver may come to it at any time: it is never released.
        brought: Box::into_raw(Box::new(product)) as usize,
    };
    match meet(stream, "cublasLtMatmul", &[part]) {
        true => SUCCESS,
        false => EXECUTION_FAILED,
    }
}
