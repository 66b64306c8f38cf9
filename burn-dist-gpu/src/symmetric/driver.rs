//! CUDA's driver, as far as processes share memory of GPUs by it: virtual memory management, file descriptors, host
//! memory of others, waits of streams.

use super::api::{Mapping, Symmetric};
use super::os::{Descriptor, Page};
use crate::device::{Address, DeviceError, Gpu, Stream};
use crate::nccl::driver::{Access, Device, named, raw_stream};
use crate::streams::driver::{PORTABLE_AND_MAPPED, library, symbol};
use cudarc::driver::result::device;
use cudarc::driver::sys;
use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// `CUmemAllocationProp`: what memory is made. Its layout is fixed; the fields' names and types differ between CUDA's
/// versions.
#[repr(C)]
struct Properties {
    kind: u32,
    handles: u32,
    location_type: u32,
    device: i32,
    win32: *mut c_void,
    flags: [u8; 8],
}

const _: () = {
    assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
    assert!(align_of::<Properties>() == align_of::<sys::CUmemAllocationProp>());
    assert!(
        std::mem::offset_of!(Properties, location_type)
            == std::mem::offset_of!(sys::CUmemAllocationProp, location)
    );
    assert!(
        std::mem::offset_of!(Properties, flags)
            == std::mem::offset_of!(sys::CUmemAllocationProp, allocFlags)
    );
};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const AS_DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// `cuStreamWaitValue32_v2` (CUDA 11.7): the one that needs no parameter of the driver's module.
type Wait = unsafe extern "C" fn(sys::CUstream, sys::CUdeviceptr, u32, c_uint) -> sys::CUresult;

/// `CU_STREAM_WAIT_VALUE_GEQ`: until the signed difference of the word and the value is not negative.
const UNTIL_PAST: c_uint = 0;

/// One GPU.
struct Driver {
    device: Arc<Device>,
    wait: Wait,
    /// Kept open as long as its function may be called.
    _library: Library,
}

/// Returns how a GPU shares memory with other processes.
///
/// # Errors
/// What the driver or the device cannot do.
pub fn symmetric(of: &Arc<Device>) -> Result<Arc<dyn Symmetric>, DeviceError> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as SHARES;
    // SAFETY: the device is there.
    let has = unsafe { device::get_attribute(of.number, SHARES) };
    if has.map_err(named("cuDeviceGetAttribute"))? == 0 {
        return Err(DeviceError {
            function: "cuMemCreate",
            reason: "this device has no file descriptors of its memory".into(),
        });
    }
    let library = library()?;
    // SAFETY: the signature is that of cuda.h.
    let wait = unsafe { symbol::<Wait>(&library, "cuStreamWaitValue32_v2") }?;
    Ok(Arc::new(Driver {
        device: Arc::clone(of),
        wait,
        _library: library,
    }))
}

/// Memory that was made or imported, released when it is mapped: a mapping keeps it.
struct Handle(sys::CUmemGenericAllocationHandle);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is released here. A device that has failed takes nothing back.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

impl Driver {
    fn properties(&self) -> Properties {
        Properties {
            kind: PINNED,
            handles: AS_DESCRIPTOR.0,
            location_type: Access::ON_DEVICE,
            device: self.device.number,
            win32: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }

    /// Maps memory where this GPU can read and write it.
    fn map(&self, memory: &Handle, bytes: usize) -> Result<Mapping, DeviceError> {
        let mut start = 0;
        // SAFETY: the pointer is to a number; the driver chooses the place.
        unsafe { sys::cuMemAddressReserve(&mut start, bytes, 0, 0, 0) }
            .result()
            .map_err(named("cuMemAddressReserve"))?;
        // SAFETY: the range was reserved above, and is as long as the memory.
        let mapped = unsafe { sys::cuMemMap(start, bytes, 0, memory.0, 0) };
        if let Err(error) = mapped.result() {
            // SAFETY: nothing is mapped there.
            let _ = unsafe { sys::cuMemAddressFree(start, bytes) };
            return Err(named("cuMemMap")(error));
        }
        let mapping = Mapping {
            address: Address(start),
            bytes,
        };
        let access = Access::of(self.device.number);
        // SAFETY: the description has the layout of `CUmemAccessDesc` (checked where it is defined), and one of them is
        // given.
        let accessible =
            unsafe { sys::cuMemSetAccess(start, bytes, (&raw const access).cast(), 1) };
        if let Err(error) = accessible.result() {
            // SAFETY: nobody has seen it.
            unsafe { self.unmap(mapping) };
            return Err(named("cuMemSetAccess")(error));
        }
        Ok(mapping)
    }
}

impl Symmetric for Driver {
    fn create(&self, bytes: usize) -> Result<(Mapping, Descriptor), DeviceError> {
        self.device.attach()?;
        let properties = self.properties();
        let properties = (&raw const properties).cast();
        let mut unit = 0;
        use sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as BEST;
        // SAFETY: the properties have the layout of `CUmemAllocationProp` (checked above).
        unsafe { sys::cuMemGetAllocationGranularity(&mut unit, properties, BEST) }
            .result()
            .map_err(named("cuMemGetAllocationGranularity"))?;
        let bytes = bytes.next_multiple_of(unit.max(1));
        let mut handle = 0;
        // SAFETY: as above.
        unsafe { sys::cuMemCreate(&mut handle, bytes, properties, 0) }
            .result()
            .map_err(named("cuMemCreate"))?;
        let memory = Handle(handle);
        let mut descriptor: c_int = -1;
        // SAFETY: a descriptor is a number of C's `int`, and the memory was made to have one.
        unsafe {
            let descriptor = (&raw mut descriptor).cast();
            sys::cuMemExportToShareableHandle(descriptor, memory.0, AS_DESCRIPTOR, 0)
        }
        .result()
        .map_err(named("cuMemExportToShareableHandle"))?;
        // SAFETY: the driver has made it for the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok((self.map(&memory, bytes)?, descriptor))
    }

    fn import(&self, descriptor: &Descriptor, bytes: usize) -> Result<Mapping, DeviceError> {
        self.device.attach()?;
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or_default();
        let mut handle = 0;
        // SAFETY: the driver takes the descriptor's number for the pointer, and keeps what it needs of it.
        unsafe {
            let number = std::ptr::without_provenance_mut(number);
            sys::cuMemImportFromShareableHandle(&mut handle, number, AS_DESCRIPTOR)
        }
        .result()
        .map_err(named("cuMemImportFromShareableHandle"))?;
        self.map(&Handle(handle), bytes)
    }

    unsafe fn unmap(&self, mapping: Mapping) {
        let Mapping { address, bytes } = mapping;
        // SAFETY: it was mapped whole, and the caller gives it up. A device that has failed takes nothing back.
        let _ = unsafe { sys::cuMemUnmap(address.0, bytes) };
        // SAFETY: as above.
        let _ = unsafe { sys::cuMemAddressFree(address.0, bytes) };
    }

    fn register(&self, page: &Page) -> Result<Address, DeviceError> {
        self.device.attach()?;
        // SAFETY: the page is mapped until it is unregistered.
        unsafe { sys::cuMemHostRegister_v2(page.start(), page.bytes(), PORTABLE_AND_MAPPED) }
            .result()
            .map_err(named("cuMemHostRegister"))?;
        let mut address = 0;
        // SAFETY: the pointer is to a number, and the page was registered to be mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, page.start(), 0) }
            .result()
            .map_err(named("cuMemHostGetDevicePointer"))?;
        Ok(Address(address))
    }

    unsafe fn unregister(&self, page: &Page) {
        // SAFETY: it was registered, and the caller gives it up. A device that has failed takes nothing back.
        let _ = unsafe { sys::cuMemHostUnregister(page.start()) };
    }

    fn wait_for(&self, stream: Stream, word: Address, value: u32) -> Result<(), DeviceError> {
        // SAFETY: streams are never destroyed, and the word is of a page that stays until they have come to their end.
        unsafe { (self.wait)(raw_stream(stream), word.0, value, UNTIL_PAST) }
            .result()
            .map_err(named("cuStreamWaitValue32"))
    }
}
