//! Memory that is given and taken back.

use super::{Handle, call, current, enqueue, put, streams_of, wait_for};
use crate::fault::Fault;
use crate::memory::{self, Allocation, Place};
use crate::queue::Work;
use crate::setup::setup;
use crate::status::{ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, Status};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::Mutex;

/// # Safety
/// As NVIDIA's: the pointer is to an address.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, bytes: usize) -> Status {
    call("cuMemAlloc_v2", || {
        let device = current()?;
        let given = memory::allocate(bytes, Place::Device(device), "cuMemAlloc_v2", false)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, given.start) }
    })
}

/// Waits for all work of the device, as NVIDIA's driver does.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Status {
    call("cuMemFree_v2", || {
        let device = current()?;
        if address == 0 {
            return Ok(());
        }
        wait_for("cuMemFree_v2", |state| Ok(streams_of(state, device)))?;
        memory::free(address, "cuMemFree_v2")
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to an address.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(to: *mut u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemAllocAsync", || {
        let device = current()?;
        let given = memory::allocate(bytes, Place::Device(device), "cuMemAllocAsync", true)?;
        let start = given.start;
        enqueue("cuMemAllocAsync", stream, Work::Give(given))?;
        // SAFETY: the caller's promise.
        unsafe { put(to, start) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> Status {
    call("cuMemFreeAsync", || {
        if address == 0 {
            return Ok(());
        }
        let wrong = |what| Fault::new(INVALID_VALUE, format!("takes back {what}"));
        let of = memory::find(address).map_err(wrong)?;
        if of.start != address {
            return Err(wrong(format!("part of {}", of.text())));
        }
        enqueue("cuMemFreeAsync", stream, Work::TakeBack(of))
    })
}

/// # Safety
/// As NVIDIA's: the pointers are to numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    call("cuMemGetInfo_v2", || {
        let device = current()?;
        // SAFETY: the caller's promise.
        unsafe {
            put(free, setup().memory - memory::used(device))?;
            put(total, setup().memory)
        }
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(to: *mut u64, bytes: usize, _flags: c_uint) -> Status {
    // SAFETY: the caller's promise.
    unsafe { allocate_of_host("cuMemHostAlloc", to, bytes) }
}

/// # Safety
/// As NVIDIA's: the pointer is to a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocHost_v2(to: *mut u64, bytes: usize) -> Status {
    // SAFETY: the caller's promise.
    unsafe { allocate_of_host("cuMemAllocHost_v2", to, bytes) }
}

/// # Safety
/// The pointer is to a pointer.
unsafe fn allocate_of_host(name: &'static str, to: *mut u64, bytes: usize) -> Status {
    call(name, || {
        current()?;
        let given = memory::allocate(bytes, Place::Host, name, false)?;
        // SAFETY: the caller's promise.
        unsafe { put(to, given.start) }
    })
}

/// Waits for all work of the device: a copy may still read there.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: u64) -> Status {
    call("cuMemFreeHost", || {
        let device = current()?;
        wait_for("cuMemFreeHost", |state| Ok(streams_of(state, device)))?;
        memory::free(address, "cuMemFreeHost")
    })
}

/// Pages of the program that were registered.
static REGISTERED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, _flags: c_uint) -> Status {
    call("cuMemHostRegister_v2", || {
        current()?;
        if start.is_null() || bytes == 0 {
            return Err(INVALID_VALUE.into());
        }
        let mut registered = REGISTERED.lock().expect("no panic among pages");
        match registered.insert(start as u64, bytes) {
            None => {
                memory::mapped(start as u64, bytes as u64, "cuMemHostRegister_v2");
                Ok(())
            }
            Some(_) => Err(ALREADY_REGISTERED.into()),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: *mut c_void) -> Status {
    call("cuMemHostUnregister", || {
        current()?;
        let mut registered = REGISTERED.lock().expect("no panic among pages");
        let gone = registered.remove(&(start as u64));
        gone.ok_or_else(|| Fault::from(NOT_REGISTERED))?;
        memory::forget(start as u64);
        Ok(())
    })
}

/// The host's memory has one address.
///
/// # Safety
/// As NVIDIA's: the first pointer is to an address.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    to: *mut u64,
    of: *mut c_void,
    _flags: c_uint,
) -> Status {
    call("cuMemHostGetDevicePointer_v2", || {
        current()?;
        let of = of as u64;
        let is_device = |given: std::sync::Arc<Allocation>| given.place != Place::Host;
        if !is_locked(of) || memory::find(of).is_ok_and(is_device) {
            return Err(Fault::new(INVALID_VALUE, "memory that no call has locked"));
        }
        // SAFETY: the caller's promise.
        unsafe { put(to, of) }
    })
}

/// Whether a call has locked the memory at an address to its pages.
pub(super) fn is_locked(address: u64) -> bool {
    let registered = REGISTERED.lock().expect("no panic among pages");
    let before = registered.range(..=address).next_back();
    before.is_some_and(|(start, bytes)| address < start + *bytes as u64)
        || memory::is_address(address)
}
