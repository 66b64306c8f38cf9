//! What programs call: NVIDIA's names and signatures.

mod context;
mod copy;
mod device;
mod error;
mod event;
mod give;
mod meet;
mod module;
mod peer;
mod set;
mod stream;
mod tensor_map;
mod virtual_memory;

use crate::fault::{self, Fault};
use crate::machine::{self, State, machine};
use crate::queue::{Marker, Work};
use crate::setup::setup;
use crate::status::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED, NOT_PERMITTED, SUCCESS, Status,
};
use software_environment::enter;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle: a number that programs hold as a pointer.
type Handle = usize;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The device whose context is current.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Does what a call is to do, once the driver is initialized, unless it is to fail.
fn call(name: &'static str, body: impl FnOnce() -> Result<(), Fault>) -> Status {
    match enter(name) {
        Some(status) => within(name, || Err(Status(status).into())),
        None => within(name, body),
    }
}

/// Does what a call is to do, of this library or of one beside it.
fn within(name: &str, body: impl FnOnce() -> Result<(), Fault>) -> Status {
    if !INITIALIZED.load(Ordering::Acquire) {
        return NOT_INITIALIZED;
    }
    let done = match machine::is_in_callback() {
        true => Err(Fault::new(NOT_PERMITTED, "a callback calls the driver")),
        false => body(),
    };
    match done {
        Ok(()) => SUCCESS,
        Err(fault) => {
            let status = fault.status;
            if !fault.text.is_empty() {
                fault::note(&fault.within(name));
            } else if setup().says_all {
                eprintln!("CUDA in software: {name}: {status:?}");
            }
            status
        }
    }
}

/// Returns the device whose context is current, unless it has failed.
fn current() -> Result<usize, Fault> {
    let device = CURRENT.get().ok_or(INVALID_CONTEXT)?;
    match machine().lock().fault(device) {
        Some(status) => Err(status.into()),
        None => Ok(device),
    }
}

/// Writes a result.
///
/// # Safety
/// The pointer is null or to a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Fault> {
    if to.is_null() {
        return Err(INVALID_VALUE.into());
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// The first handle of a stream; those below are names of the null stream.
const STREAMS: Handle = 0x1000;

/// Returns the stream of a handle.
fn stream(state: &State, handle: Handle) -> Result<usize, Fault> {
    let at = match handle {
        0..=2 => state.null(CURRENT.get().ok_or(INVALID_CONTEXT)?),
        _ => handle.wrapping_sub(STREAMS),
    };
    match state.streams.get(at) {
        Some(stream) if stream.is_destroyed => {
            Err(Fault::new(INVALID_HANDLE, "a stream that was destroyed"))
        }
        Some(_) => Ok(at),
        None => Err(Fault::new(INVALID_HANDLE, "no stream")),
    }
}

/// Puts work on a stream of the current device.
fn enqueue(name: &str, handle: Handle, work: Work) -> Result<(), Fault> {
    current()?;
    let machine = machine();
    let mut state = machine.lock();
    let at = stream(&state, handle)?;
    machine.put(&mut state, at, &Arc::from(name), work);
    Ok(())
}

/// Waits until all that is in some streams is over.
fn wait_for(name: &str, of: impl FnOnce(&State) -> Result<Vec<usize>, Fault>) -> Result<(), Fault> {
    let machine = machine();
    let mut state = machine.lock();
    let streams = of(&state)?;
    let devices: Vec<usize> = streams.iter().map(|at| state.streams[*at].device).collect();
    let call = Arc::from(name);
    let markers = streams.into_iter().map(|at| state.mark(at, &call));
    let markers: Vec<Arc<Marker>> = markers.collect();
    machine.wait(state, &markers);
    let state = machine.lock();
    match devices.into_iter().find_map(|device| state.fault(device)) {
        Some(status) => Err(status.into()),
        None => Ok(()),
    }
}

/// Puts work on a stream and waits for it.
fn at_once(name: &str, handle: Handle, work: Work) -> Result<(), Fault> {
    enqueue(name, handle, work)?;
    wait_for(name, |state| Ok(vec![stream(state, handle)?]))
}

/// The streams of a device.
fn streams_of(state: &State, device: usize) -> Vec<usize> {
    let streams = state.streams.iter().enumerate();
    let streams = streams.filter(|(_, stream)| stream.device == device && !stream.is_destroyed);
    streams.map(|(at, _)| at).collect()
}
