//! Devices: what they are.

use super::{INITIALIZED, call, put};
use crate::fault::Fault;
use crate::setup::setup;
use crate::status::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, SUCCESS, Status};
use software_environment::enter;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

/// The version of CUDA: 13.0.
const VERSION: c_int = 13_000;

/// Bytes of shared memory that a block may have.
pub(super) const SHARED_MAX: c_int = 48 << 10;

/// Threads of a block, in all and in each direction, and blocks of a grid in each.
pub(super) const THREADS_MAX: c_int = 1024;
pub(super) const BLOCK_MAX: [c_int; 3] = [1024, 1024, 64];
pub(super) const GRID_MAX: [c_int; 3] = [c_int::MAX, 65_535, 65_535];

/// Returns the number of a device.
pub(super) fn device(number: c_int) -> Result<usize, Fault> {
    match usize::try_from(number) {
        Ok(number) if number < setup().devices => Ok(number),
        _ => Err(INVALID_DEVICE.into()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Status {
    if let Some(status) = enter("cuInit") {
        return Status(status);
    }
    if flags != 0 {
        return INVALID_VALUE;
    }
    if setup().devices == 0 {
        return NO_DEVICE;
    }
    INITIALIZED.store(true, Ordering::Release);
    SUCCESS
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    match unsafe { put(version, VERSION) } {
        Ok(()) => SUCCESS,
        Err(fault) => fault.status,
    }
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    call("cuDeviceGetCount", || unsafe {
        put(count, setup().devices as c_int)
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: the caller's promise.
    call("cuDeviceGet", || unsafe {
        put(to, device(ordinal)? as c_int)
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to as many characters.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, of: c_int) -> Status {
    call("cuDeviceGetName", || {
        let text = format!("GPU in software {}\0", device(of)?);
        if name.is_null() || (length as usize) < text.len() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller's promise, and the length.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(())
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to 16 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], of: c_int) -> Status {
    call("cuDeviceGetUuid_v2", || {
        let mut bytes = *b"software GPU\0\0\0\0";
        bytes[12..].copy_from_slice(&(setup().visible[device(of)?] as u32).to_ne_bytes());
        // SAFETY: the caller's promise.
        unsafe { put(uuid, bytes) }
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, of: c_int) -> Status {
    call("cuDeviceTotalMem_v2", || {
        device(of)?;
        // SAFETY: the caller's promise.
        unsafe { put(bytes, setup().memory) }
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_uint, of: c_int) -> Status {
    call("cuDeviceGetAttribute", || {
        device(of)?;
        let found = attribute(which).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(value, found) }
    })
}

/// `CUdevice_attribute`: those of the smallest device, whatever the compute capability.
fn attribute(which: c_uint) -> Option<c_int> {
    Some(match which {
        1 => THREADS_MAX,
        2..=4 => BLOCK_MAX[which as usize - 2],
        5..=7 => GRID_MAX[which as usize - 5],
        8 | 97 => SHARED_MAX,
        // Constant memory, a warp, the longest pitch, registers, kHz, alignment of textures.
        9 => 65_536,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65_536,
        13 | 36 => 1_000_000,
        14 => 512,
        // Copies beside kernels, processors, mapped memory, kernels beside each other, copy engines, one address space.
        15 | 19 | 31 | 41 => 1,
        16 => 4,
        40 => 2,
        17 | 18 | 20 | 32 | 35 => 0,
        33 | 34 | 50 => 0,
        37 => 256,
        38 => 1 << 20,
        39 => 2048,
        75 => setup().capability.0 as c_int,
        76 => setup().capability.1 as c_int,
        78 => 1,
        81 => 96 << 10,
        // Managed and pageable memory.
        83 | 88 | 89 | 95 => 0,
        // Stream memory operations, by both of their numbers.
        92..=94 | 121..=123 => 1,
        99 => 1,
        // Virtual memory, and descriptors for it.
        102 | 103 => 1,
        115 => 1,
        120 => 0,
        132 => 0,
        _ => return None,
    })
}
