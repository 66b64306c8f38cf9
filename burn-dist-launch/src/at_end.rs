//! Calls that are made when the program ends.

use std::ffi::c_int;

/// Has `end` called when the program ends, in the thread that ends it and before what was registered earlier. The code
/// that it returns, if any, is what a program ends with that would have ended well.
///
/// `end` may touch nothing that ends before it, such as what threads own.
macro_rules! at_end {
    ($end:path) => {{
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            extern "C" fn call(status: std::ffi::c_int, _: *mut std::ffi::c_void) {
                $crate::at_end::leave($end(), status);
            }
            unsafe extern "C" {
                fn on_exit(
                    call: extern "C" fn(std::ffi::c_int, *mut std::ffi::c_void),
                    argument: *mut std::ffi::c_void,
                ) -> std::ffi::c_int;
            }
            // SAFETY: the function is there until the program ends, and looks at no argument.
            unsafe { on_exit(call, std::ptr::null_mut()) };
        }
        // What the program would have ended with is not known here.
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        {
            extern "C" fn call() {
                $crate::at_end::leave($end(), 0);
            }
            // SAFETY: the function is there until the program ends.
            unsafe { libc::atexit(call) };
        }
    }};
}

pub(crate) use at_end;

/// Ends the program with another code, if there is one and it would have ended well.
pub(crate) fn leave(code: Option<u8>, status: c_int) {
    if let (Some(code), 0) = (code, status) {
        // SAFETY: the program ends already: what it had to write is written.
        unsafe { libc::_exit(code.into()) };
    }
}
