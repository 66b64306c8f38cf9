//! Names and texts of results.

use crate::fault;
use crate::status::{INVALID_VALUE, SUCCESS, Status};
use software_environment::note;
use std::ffi::c_char;

/// # Safety
/// As NVIDIA's: the pointer is to a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: Status, text: *mut *const c_char) -> Status {
    note("cuGetErrorName");
    match error.texts() {
        Some((name, _)) if !text.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { text.write(name.as_ptr()) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}

/// The text of the last fault of that status, if there was one.
///
/// # Safety
/// As NVIDIA's: the pointer is to a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: Status, text: *mut *const c_char) -> Status {
    note("cuGetErrorString");
    match error.texts() {
        Some((_, plain)) if !text.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { text.write(fault::last(error).unwrap_or(plain.as_ptr())) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}
