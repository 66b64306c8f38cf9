//! Virtual memory: addresses that are reserved, memory that is made, and mapped there; with descriptors, by which
//! processes share it.

use super::device::device;
use super::peer::{Access, ON_DEVICE, READ_WRITE};
use super::{Handle, call, current, put};
use crate::fault::Fault;
use crate::memory;
use crate::status::{INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, Status};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;

/// Sizes are multiples of this.
const UNIT: usize = 2 << 20;

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const PINNED: c_uint = 1;
const AS_DESCRIPTOR: c_uint = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_uint,
    handles: c_uint,
    location_type: c_uint,
    device: c_int,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// Memory that was made; addresses that were reserved; what is mapped where.
struct Virtual {
    next: Handle,
    made: BTreeMap<Handle, OwnedFd>,
    reserved: BTreeMap<u64, usize>,
    mapped: BTreeMap<u64, usize>,
}

static VIRTUAL: Mutex<Virtual> = Mutex::new(Virtual {
    next: 0x7000_0000,
    made: BTreeMap::new(),
    reserved: BTreeMap::new(),
    mapped: BTreeMap::new(),
});

fn with<T>(then: impl FnOnce(&mut Virtual) -> T) -> T {
    then(&mut VIRTUAL.lock().expect("no panic in virtual memory"))
}

impl Virtual {
    fn keep(&mut self, memory: OwnedFd) -> Handle {
        self.next += 16;
        self.made.insert(self.next, memory);
        self.next
    }
}

fn wrong<T>(what: &str) -> Result<T, Fault> {
    Err(Fault::new(INVALID_VALUE, what))
}

/// Checks what memory is to be made.
///
/// # Safety
/// The pointer is null or to properties.
unsafe fn check(properties: *const Properties) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { properties.as_ref() }) else {
        return wrong("no properties");
    };
    if of.kind != PINNED || of.location_type != ON_DEVICE || of.handles & !AS_DESCRIPTOR != 0 {
        return wrong("properties of memory that there is none of");
    }
    device(of.device).map(drop)
}

/// # Safety
/// As NVIDIA's: the pointers are to a number and to properties.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    to: *mut usize,
    properties: *const Properties,
    _option: c_uint,
) -> Status {
    // SAFETY: the caller's promise.
    call("cuMemGetAllocationGranularity", || unsafe {
        check(properties)?;
        put(to, UNIT)
    })
}

/// # Safety
/// As NVIDIA's: the pointers are to a handle and to properties.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    to: *mut Handle,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
) -> Status {
    call("cuMemCreate", || {
        // SAFETY: the caller's promise.
        unsafe { check(properties) }?;
        if bytes == 0 || !bytes.is_multiple_of(UNIT) || flags != 0 {
            return wrong(&format!("{bytes} bytes, which are no multiple of {UNIT}"));
        }
        // SAFETY: the name ends with a zero, and the descriptor is new.
        let memory = unsafe {
            let number = libc::memfd_create(c"memory of a GPU".as_ptr(), libc::MFD_CLOEXEC);
            if number < 0 {
                return Err(OUT_OF_MEMORY.into());
            }
            OwnedFd::from_raw_fd(number)
        };
        let file = File::from(memory);
        let sized = file.set_len(bytes as u64);
        sized.map_err(|_| Fault::from(OUT_OF_MEMORY))?;
        let handle = with(|all| all.keep(file.into()));
        // SAFETY: the caller's promise.
        unsafe { put(to, handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(memory: Handle) -> Status {
    call("cuMemRelease", || {
        let gone = with(|all| all.made.remove(&memory));
        gone.map(drop).ok_or_else(|| INVALID_HANDLE.into())
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a descriptor.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_int,
    memory: Handle,
    kind: c_uint,
    _flags: u64,
) -> Status {
    call("cuMemExportToShareableHandle", || {
        if kind != AS_DESCRIPTOR {
            return wrong("a kind of handle that is no descriptor");
        }
        let copied = with(|all| all.made.get(&memory).map(OwnedFd::try_clone));
        let copied = copied.ok_or_else(|| Fault::from(INVALID_HANDLE))?;
        let copied = copied.map_err(|_| Fault::from(OUT_OF_MEMORY))?;
        // SAFETY: the caller's promise, who gets the descriptor.
        unsafe { put(to, copied.into_raw_fd()) }
    })
}

/// # Safety
/// As NVIDIA's: the first pointer is to a handle, and the second is a descriptor.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    to: *mut Handle,
    descriptor: *mut c_void,
    kind: c_uint,
) -> Status {
    call("cuMemImportFromShareableHandle", || {
        current()?;
        if kind != AS_DESCRIPTOR {
            return wrong("a kind of handle that is no descriptor");
        }
        // SAFETY: the caller's promise; it is looked at during this call only.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor as usize as c_int) };
        let copied = descriptor.try_clone_to_owned();
        let copied = copied.or_else(|_| wrong("no descriptor"))?;
        let handle = with(|all| all.keep(copied));
        // SAFETY: the caller's promise.
        unsafe { put(to, handle) }
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to an address.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    to: *mut u64,
    bytes: usize,
    _alignment: usize,
    _wish: u64,
    flags: u64,
) -> Status {
    call("cuMemAddressReserve", || {
        if bytes == 0 || !bytes.is_multiple_of(UNIT) || flags != 0 {
            return wrong(&format!("{bytes} bytes, which are no multiple of {UNIT}"));
        }
        let start = memory::reserve(bytes as u64);
        with(|all| all.reserved.insert(start, bytes));
        // SAFETY: the caller's promise.
        unsafe { put(to, start) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(start: u64, bytes: usize) -> Status {
    call("cuMemAddressFree", || {
        with(|all| match all.reserved.get(&start) {
            Some(_) if all.mapped.contains_key(&start) => wrong("addresses where memory is mapped"),
            Some(reserved) if *reserved == bytes => {
                all.reserved.remove(&start);
                Ok(())
            }
            _ => wrong("addresses that were not reserved like that"),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    start: u64,
    bytes: usize,
    offset: usize,
    memory: Handle,
    flags: u64,
) -> Status {
    call("cuMemMap", || {
        if offset != 0 || flags != 0 {
            return wrong("an offset or flags");
        }
        with(|all| {
            if all.reserved.get(&start) != Some(&bytes) {
                return wrong("addresses that were not reserved like that");
            }
            let Some(file) = all.made.get(&memory) else {
                return Err(INVALID_HANDLE.into());
            };
            // SAFETY: addresses of the arena, which were reserved for this. Nobody can touch it before it is let in.
            let mapped = unsafe {
                libc::mmap(
                    start as *mut _,
                    bytes,
                    libc::PROT_NONE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    file.as_raw_fd(),
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(OUT_OF_MEMORY.into());
            }
            all.mapped.insert(start, bytes);
            Ok(())
        })
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to as many descriptions.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    start: u64,
    bytes: usize,
    accesses: *const Access,
    count: usize,
) -> Status {
    call("cuMemSetAccess", || {
        if accesses.is_null() || with(|all| all.mapped.get(&start) != Some(&bytes)) {
            return wrong("addresses where nothing is mapped like that");
        }
        // SAFETY: the caller's promise.
        for access in unsafe { std::slice::from_raw_parts(accesses, count) } {
            if access.kind != ON_DEVICE || access.flags != READ_WRITE {
                return wrong("a kind of access");
            }
            device(access.number).map_err(|_| INVALID_DEVICE)?;
        }
        // SAFETY: it was mapped, all of it.
        let opened = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mprotect(start as *mut _, bytes, protection)
        };
        if opened != 0 {
            return Err(OUT_OF_MEMORY.into());
        }
        memory::mapped(start, bytes as u64, "cuMemMap");
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(start: u64, bytes: usize) -> Status {
    call("cuMemUnmap", || {
        if with(|all| all.mapped.get(&start) != Some(&bytes)) {
            return wrong("addresses where nothing is mapped like that");
        }
        with(|all| all.mapped.remove(&start));
        // What was never let in is in no table.
        match memory::find(start) {
            Ok(_) => memory::free(start, "cuMemUnmap"),
            Err(_) => Ok(()),
        }
    })
}
