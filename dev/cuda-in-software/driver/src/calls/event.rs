//! Events: places in streams.

use super::context::device_of;
use super::{Handle, call, current, put, stream, streams_of};
use crate::fault::Fault;
use crate::machine::{State, machine};
use crate::queue::{Marker, Work};
use crate::status::{INVALID_HANDLE, NOT_READY, Status};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// An event: the markers that were put when it was recorded last.
struct Event {
    device: usize,
    markers: Vec<Arc<Marker>>,
}

static EVENTS: Mutex<Option<HashMap<Handle, Event>>> = Mutex::new(None);
static NEXT: AtomicUsize = AtomicUsize::new(0x10_0000);

fn events<T>(then: impl FnOnce(&mut HashMap<Handle, Event>) -> T) -> T {
    let mut events = EVENTS.lock().expect("no panic among events");
    then(events.get_or_insert_default())
}

fn none() -> Fault {
    Fault::new(
        INVALID_HANDLE,
        "an event that is not there, or was destroyed",
    )
}

/// Returns an event's device and its markers.
fn markers(event: Handle) -> Result<(usize, Vec<Arc<Marker>>), Fault> {
    let of = |event: &Event| (event.device, event.markers.clone());
    events(|events| events.get(&event).map(of)).ok_or_else(none)
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(to: *mut Handle, _flags: c_uint) -> Status {
    call("cuEventCreate", || {
        let device = current()?;
        let event = NEXT.fetch_add(16, Ordering::Relaxed);
        let markers = Vec::new();
        events(|events| events.insert(event, Event { device, markers }));
        // SAFETY: the caller's promise.
        unsafe { put(to, event) }
    })
}

/// Records an event in streams of its device.
fn record(
    name: &str,
    event: Handle,
    of: impl FnOnce(&State) -> Result<Vec<usize>, Fault>,
) -> Result<(), Fault> {
    current()?;
    let device = events(|events| events.get(&event).map(|event| event.device));
    let device = device.ok_or_else(none)?;
    let machine = machine();
    let mut state = machine.lock();
    let streams = of(&state)?;
    if streams.iter().any(|at| state.streams[*at].device != device) {
        let text = format!("an event of device {device}, in a stream of another");
        return Err(Fault::new(INVALID_HANDLE, text));
    }
    let call: Arc<str> = name.into();
    let mut markers = Vec::new();
    for at in streams {
        let marker = Arc::new(Marker::default());
        let work = Work::Mark(Arc::clone(&marker));
        machine.put(&mut state, at, &call, work);
        markers.push(marker);
    }
    drop(state);
    events(|events| {
        let event = events.get_mut(&event).ok_or_else(none)?;
        event.markers = markers;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, handle: Handle) -> Status {
    call("cuEventRecord", || {
        record("cuEventRecord", event, |state| {
            Ok(vec![stream(state, handle)?])
        })
    })
}

/// Records an event after all that the streams of a context hold.
#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(context: Handle, event: Handle) -> Status {
    call("cuCtxRecordEvent", || {
        let device = device_of(context)?;
        record("cuCtxRecordEvent", event, |state| {
            Ok(streams_of(state, device))
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: Handle, event: Handle, _flags: c_uint) -> Status {
    call("cuStreamWaitEvent", || {
        let (_, markers) = markers(event)?;
        super::enqueue("cuStreamWaitEvent", handle, Work::Wait(markers))
    })
}

/// An event that was never recorded is over. Its context need not be current.
#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> Status {
    call("cuEventQuery", || {
        let (device, markers) = markers(event)?;
        let machine = machine();
        let mut state = machine.lock();
        if markers.iter().any(|marker| marker.come().is_none()) {
            machine.begin(&mut state);
            return Err(NOT_READY.into());
        }
        machine.wait(state, &markers);
        failed(device)
    })
}

/// Its context need not be current.
#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> Status {
    call("cuEventSynchronize", || {
        let (device, markers) = markers(event)?;
        let machine = machine();
        machine.wait(machine.lock(), &markers);
        failed(device)
    })
}

fn failed(device: usize) -> Result<(), Fault> {
    match machine().lock().fault(device) {
        Some(status) => Err(status.into()),
        None => Ok(()),
    }
}

/// Those who wait for the event still do.
#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> Status {
    call("cuEventDestroy_v2", || {
        let gone = events(|events| events.remove(&event));
        gone.map(drop).ok_or_else(none)
    })
}
