//! Devices that reach each other's memory.

use super::context::device_of;
use super::device::device;
use super::{Handle, call, current, put};
use crate::memory;
use crate::setup::setup;
use crate::status::{INVALID_DEVICE, INVALID_VALUE, PEER_ALREADY, PEER_UNSUPPORTED, Status};
use std::ffi::{c_int, c_uint};

/// The first handle of a pool: each device has one.
const POOLS: Handle = 0x800;

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, one: c_int, other: c_int) -> Status {
    call("cuDeviceCanAccessPeer", || {
        let can_reach = device(one)? != device(other)?;
        // SAFETY: the caller's promise.
        unsafe { put(can, can_reach.into()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> Status {
    call("cuCtxEnablePeerAccess", || {
        let (device, peer) = (current()?, device_of(peer)?);
        if flags != 0 {
            return Err(INVALID_VALUE.into());
        }
        if device == peer {
            return Err(PEER_UNSUPPORTED.into());
        }
        match memory::let_in(device, peer, false) {
            true => Ok(()),
            false => Err(PEER_ALREADY.into()),
        }
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut Handle, of: c_int) -> Status {
    // SAFETY: the caller's promise.
    call("cuDeviceGetDefaultMemPool", || unsafe {
        put(pool, POOLS + device(of)?)
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut Handle, of: c_int) -> Status {
    // SAFETY: the caller's promise.
    call("cuDeviceGetMemPool", || unsafe {
        put(pool, POOLS + device(of)?)
    })
}

/// `CUmemAccessDesc`: a location, and what may be done from there.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Access {
    pub(super) kind: c_uint,
    pub(super) number: c_int,
    pub(super) flags: c_uint,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE` and `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(super) const ON_DEVICE: c_uint = 1;
pub(super) const READ_WRITE: c_uint = 3;

/// # Safety
/// As NVIDIA's: the pointer is to as many descriptions.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolSetAccess(
    pool: Handle,
    accesses: *const Access,
    count: usize,
) -> Status {
    call("cuMemPoolSetAccess", || {
        let owner = pool.wrapping_sub(POOLS);
        if owner >= setup().devices || accesses.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller's promise.
        for access in unsafe { std::slice::from_raw_parts(accesses, count) } {
            if access.kind != ON_DEVICE || access.flags != READ_WRITE {
                return Err(INVALID_VALUE.into());
            }
            let accessor = device(access.number).map_err(|_| INVALID_DEVICE)?;
            memory::let_in(accessor, owner, true);
        }
        Ok(())
    })
}
