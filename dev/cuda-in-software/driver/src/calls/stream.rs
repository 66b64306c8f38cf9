//! Streams and callbacks in them.

use super::{Handle, STREAMS, call, current, enqueue, put, stream, wait_for};
use crate::fault::Fault;
use crate::machine::machine;
use crate::queue::{Stream, UserData, Work};
use crate::status::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Status};
use std::ffi::{c_int, c_uint, c_void};

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(to: *mut Handle, flags: c_uint) -> Status {
    call("cuStreamCreate", || {
        let device = current()?;
        if flags > 1 {
            return Err(INVALID_VALUE.into());
        }
        let mut state = machine().lock();
        let at = state.streams.len();
        state.streams.push(Stream::new(device, false, flags == 0));
        drop(state);
        // SAFETY: the caller's promise.
        unsafe { put(to, STREAMS + at) }
    })
}

/// Priorities change nothing.
///
/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    to: *mut Handle,
    flags: c_uint,
    _priority: c_int,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { cuStreamCreate(to, flags) }
}

/// What the stream holds still runs.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: Handle) -> Status {
    call("cuStreamDestroy_v2", || {
        let mut state = machine().lock();
        let at = stream(&state, handle)?;
        if state.streams[at].is_null {
            return Err(INVALID_HANDLE.into());
        }
        state.streams[at].is_destroyed = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: Handle) -> Status {
    call("cuStreamSynchronize", || {
        wait_for("cuStreamSynchronize", |state| {
            Ok(vec![stream(state, handle)?])
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: Handle) -> Status {
    call("cuStreamQuery", || {
        let state = machine().lock();
        let at = stream(&state, handle)?;
        if state.streams[at].is_busy || !state.streams[at].ops.is_empty() {
            return Err(NOT_READY.into());
        }
        drop(state);
        wait_for("cuStreamQuery", |state| Ok(vec![stream(state, handle)?]))
    })
}

/// # Safety
/// As NVIDIA's: the function takes the data, in another thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchHostFunc(
    handle: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Status {
    call("cuLaunchHostFunc", || {
        let function = function.ok_or_else(|| Fault::from(INVALID_VALUE))?;
        let work = Work::Callback(function, UserData(data));
        enqueue("cuLaunchHostFunc", handle, work)
    })
}

/// Checks a word's address.
fn word(address: u64) -> Result<u64, Fault> {
    match address % 4 {
        0 => Ok(address),
        _ => Err(Fault::new(
            INVALID_VALUE,
            format!("{address:#x} is no word's"),
        )),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(
    handle: Handle,
    address: u64,
    value: u32,
    flags: c_uint,
) -> Status {
    call("cuStreamWriteValue32_v2", || {
        if flags > 1 {
            return Err(INVALID_VALUE.into());
        }
        let address = word(address)?;
        let work = Work::WriteValue { address, value };
        enqueue("cuStreamWriteValue32_v2", handle, work)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue32_v2(
    handle: Handle,
    address: u64,
    value: u32,
    flags: c_uint,
) -> Status {
    call("cuStreamWaitValue32_v2", || {
        let work = Work::WaitValue {
            address: word(address)?,
            value,
            flags,
        };
        enqueue("cuStreamWaitValue32_v2", handle, work)
    })
}
