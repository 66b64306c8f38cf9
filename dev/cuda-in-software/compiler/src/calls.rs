//! What programs call: NVIDIA's names and signatures.

use crate::program::{Failure, Program};
use software_environment::{enter, note};
use std::ffi::{CStr, c_char, c_int};

/// `nvrtcResult`, as far as it is returned here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Status(u32);

const SUCCESS: Status = Status(0);
const PROGRAM_CREATION: Status = Status(2);
const INVALID_INPUT: Status = Status(3);
const INVALID_PROGRAM: Status = Status(4);
const INVALID_OPTION: Status = Status(5);
const COMPILATION: Status = Status(6);
const NO_NAME_EXPRESSIONS: Status = Status(8);

/// # Safety
/// As NVIDIA's: the result is of this driver.
#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(status: u32) -> *const c_char {
    note("nvrtcGetErrorString");
    let text = match status {
        0 => c"NVRTC_SUCCESS",
        2 => c"NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        3 => c"NVRTC_ERROR_INVALID_INPUT",
        4 => c"NVRTC_ERROR_INVALID_PROGRAM",
        5 => c"NVRTC_ERROR_INVALID_OPTION",
        6 => c"NVRTC_ERROR_COMPILATION",
        8 => c"NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}

/// The version of CUDA that the driver beside this has: 13.0.
///
/// # Safety
/// As NVIDIA's: the pointers are to numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Status {
    if let Some(status) = enter("nvrtcVersion") {
        return Status(status);
    }
    if major.is_null() || minor.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        major.write(13);
        minor.write(0);
    }
    SUCCESS
}

/// Headers that a program brings along are not read.
///
/// # Safety
/// As NVIDIA's: the first pointer is to a handle, and the text ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    to: *mut *mut Program,
    text: *const c_char,
    _name: *const c_char,
    headers: c_int,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> Status {
    if let Some(status) = enter("nvrtcCreateProgram") {
        return Status(status);
    }
    if to.is_null() || text.is_null() {
        return INVALID_INPUT;
    }
    if headers != 0 {
        return PROGRAM_CREATION;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let program = Program {
        text: text.to_string_lossy().into_owned(),
        log: String::new(),
        image: None,
    };
    // SAFETY: the caller's promise.
    unsafe { to.write(Box::into_raw(Box::new(program))) };
    SUCCESS
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> Status {
    if let Some(status) = enter("nvrtcDestroyProgram") {
        return Status(status);
    }
    // SAFETY: the caller's promise; a program is a box that was made above.
    unsafe {
        if program.is_null() || (*program).is_null() {
            return INVALID_PROGRAM;
        }
        drop(Box::from_raw(*program));
        program.write(std::ptr::null_mut());
    }
    SUCCESS
}

/// # Safety
/// As NVIDIA's: there are as many options, each of which ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Program,
    count: c_int,
    options: *const *const c_char,
) -> Status {
    if let Some(status) = enter("nvrtcCompileProgram") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    let Some(program) = (unsafe { program.as_mut() }) else {
        return INVALID_PROGRAM;
    };
    let given = (0..count as usize).map(|at| {
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(*options.add(at)) }
            .to_string_lossy()
            .into_owned()
    });
    let given: Vec<String> = given.collect();
    let compiled = program.compile(&given);
    if compiled.is_err() && std::env::var_os("CUDA_IN_SOFTWARE_SAY").is_some() {
        eprintln!("CUDA in software: nvrtcCompileProgram: {}", program.log);
    }
    match compiled {
        Ok(()) => SUCCESS,
        Err(Failure::Option) => INVALID_OPTION,
        Err(Failure::Text | Failure::System) => COMPILATION,
    }
}

/// Writes how long bytes are.
///
/// # Safety
/// The pointers are to a program and to a number, or null.
unsafe fn size(
    program: *const Program,
    to: *mut usize,
    of: impl FnOnce(&Program) -> Option<usize>,
) -> Status {
    // SAFETY: the caller's promise.
    match unsafe { program.as_ref() }.map(of) {
        Some(Some(size)) if !to.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { to.write(size) };
            SUCCESS
        }
        _ => INVALID_PROGRAM,
    }
}

/// Writes bytes.
///
/// # Safety
/// The pointers are to a program and to as many bytes, or null.
unsafe fn copy(
    program: *const Program,
    to: *mut c_char,
    of: impl FnOnce(&Program) -> Option<Vec<u8>>,
) -> Status {
    // SAFETY: the caller's promise.
    match unsafe { program.as_ref() }.map(of) {
        Some(Some(bytes)) if !to.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
            SUCCESS
        }
        _ => INVALID_PROGRAM,
    }
}

fn image(program: &Program) -> Option<Vec<u8>> {
    program.image.clone()
}

fn log(program: &Program) -> Option<Vec<u8>> {
    Some([program.log.replace('\0', " ").as_bytes(), b"\0"].concat())
}

/// # Safety
/// As NVIDIA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTXSize(program: *const Program, to: *mut usize) -> Status {
    if let Some(status) = enter("nvrtcGetPTXSize") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe {
        size(program, to, |program| {
            image(program).map(|bytes| bytes.len())
        })
    }
}

/// # Safety
/// As NVIDIA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTX(program: *const Program, to: *mut c_char) -> Status {
    if let Some(status) = enter("nvrtcGetPTX") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { copy(program, to, image) }
}

/// # Safety
/// As NVIDIA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBINSize(program: *const Program, to: *mut usize) -> Status {
    if let Some(status) = enter("nvrtcGetCUBINSize") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { nvrtcGetPTXSize(program, to) }
}

/// # Safety
/// As NVIDIA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBIN(program: *const Program, to: *mut c_char) -> Status {
    if let Some(status) = enter("nvrtcGetCUBIN") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { nvrtcGetPTX(program, to) }
}

/// # Safety
/// As NVIDIA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLogSize(program: *const Program, to: *mut usize) -> Status {
    if let Some(status) = enter("nvrtcGetProgramLogSize") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { size(program, to, |program| log(program).map(|bytes| bytes.len())) }
}

/// # Safety
/// As NVIDIA's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLog(program: *const Program, to: *mut c_char) -> Status {
    if let Some(status) = enter("nvrtcGetProgramLog") {
        return Status(status);
    }
    // SAFETY: the caller's promise.
    unsafe { copy(program, to, log) }
}

/// Names of templates are not looked up.
#[unsafe(no_mangle)]
extern "C" fn nvrtcAddNameExpression(_program: *mut Program, _name: *const c_char) -> Status {
    if let Some(status) = enter("nvrtcAddNameExpression") {
        return Status(status);
    }
    NO_NAME_EXPRESSIONS
}
