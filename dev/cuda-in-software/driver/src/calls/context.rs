//! Contexts: one for each device, the primary one.

use super::device::device;
use super::{CURRENT, Handle, call, current, put, streams_of, wait_for};
use crate::setup::setup;
use crate::status::{INVALID_CONTEXT, Status};
use std::ffi::{c_int, c_uint};

/// The first handle of a context.
const CONTEXTS: Handle = 0x100;

/// Returns the device of a context.
pub(super) fn device_of(context: Handle) -> Result<usize, Status> {
    match context.checked_sub(CONTEXTS) {
        Some(device) if device < setup().devices => Ok(device),
        _ => Err(INVALID_CONTEXT),
    }
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, of: c_int) -> Status {
    // SAFETY: the caller's promise.
    call("cuDevicePrimaryCtxRetain", || unsafe {
        put(context, CONTEXTS + device(of)?)
    })
}

/// The context stays: what is retained here is never worth releasing.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(of: c_int) -> Status {
    call("cuDevicePrimaryCtxRelease_v2", || device(of).map(drop))
}

/// # Safety
/// As NVIDIA's: the pointers are to numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    of: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Status {
    call("cuDevicePrimaryCtxGetState", || {
        device(of)?;
        // SAFETY: the caller's promise.
        unsafe {
            put(flags, 0)?;
            put(active, 1)
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> Status {
    call("cuCtxSetCurrent", || {
        let device = match context {
            0 => None,
            context => Some(device_of(context)?),
        };
        CURRENT.set(device);
        Ok(())
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Status {
    call("cuCtxGetCurrent", || {
        let current = CURRENT.get().map_or(0, |device| CONTEXTS + device);
        // SAFETY: the caller's promise.
        unsafe { put(context, current) }
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(to: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    call("cuCtxGetDevice", || unsafe {
        put(to, CURRENT.get().ok_or(INVALID_CONTEXT)? as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Status {
    call("cuCtxSynchronize", || {
        let device = current()?;
        wait_for("cuCtxSynchronize", |state| Ok(streams_of(state, device)))
    })
}
