//! CUDA's driver, as far as it orders streams.
//!
//! The functions are looked up by name: they came with CUDA 11.7 and 12.5, and what this crate was compiled against
//! says nothing of the driver that it finds.

use super::api::{Signals, Words};
use crate::device::{Address, DeviceError, Event, Gpu, Stream};
use crate::nccl::driver::{Device, named, raw_stream};
use cudarc::driver::{result, result::event, sys};
use libloading::Library;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// `cuCtxRecordEvent` (CUDA 12.5).
type RecordAll = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

/// `cuStreamWriteValue32_v2` (CUDA 11.7): the one that needs no parameter of the driver's module.
type Write = unsafe extern "C" fn(sys::CUstream, sys::CUdeviceptr, u32, c_uint) -> sys::CUresult;

/// `CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS`, of the functions that end in `_v2`. Devices that have these
/// have those of 32 bits; the number has had two names.
const STREAM_MEMORY_OPERATIONS: u32 = 122;

/// `CU_STREAM_WRITE_VALUE_DEFAULT`: after a fence that is like `__threadfence_system`.
const WITH_FENCE: c_uint = 0;

/// Portable to all contexts (1), and mapped (2).
pub(crate) const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

/// Words of a page of 4 KiB.
const WORDS: usize = 1024;

/// The functions, for one GPU.
struct Driver {
    device: Arc<Device>,
    record_all: RecordAll,
    write: Write,
    /// Kept open as long as its functions may be called.
    _library: Library,
}

/// Returns what orders streams of a GPU.
///
/// # Errors
/// What the driver does not have.
pub fn signals(device: &Arc<Device>) -> Result<Arc<dyn Signals>, DeviceError> {
    let library = library()?;
    // SAFETY: the signatures are those of cuda.h.
    let (record_all, write) = unsafe {
        (
            symbol::<RecordAll>(&library, "cuCtxRecordEvent")?,
            symbol::<Write>(&library, "cuStreamWriteValue32_v2")?,
        )
    };
    let mut has = 0;
    // SAFETY: the pointer is to a number, the device is there, and a number that the driver does not know is an error.
    let asked = unsafe {
        let ask: unsafe extern "C" fn(*mut i32, u32, sys::CUdevice) -> sys::CUresult =
            symbol(&library, "cuDeviceGetAttribute")?;
        ask(&mut has, STREAM_MEMORY_OPERATIONS, device.number)
    };
    asked.result().map_err(named("cuDeviceGetAttribute"))?;
    if has == 0 {
        return Err(DeviceError {
            function: "cuStreamWriteValue32_v2",
            reason: "this device has no stream memory operations".into(),
        });
    }
    Ok(Arc::new(Driver {
        device: Arc::clone(device),
        record_all,
        write,
        _library: library,
    }))
}

/// Opens CUDA's driver, to look functions up by name.
pub(crate) fn library() -> Result<Library, DeviceError> {
    // SAFETY: it is loaded already.
    let library = unsafe { Library::new("libcuda.so.1") };
    library.map_err(|error| DeviceError {
        function: "dlopen",
        reason: error.to_string(),
    })
}

/// # Safety
/// The symbol is a function of type `F`.
pub(crate) unsafe fn symbol<F: Copy>(
    library: &Library,
    name: &'static str,
) -> Result<F, DeviceError> {
    // SAFETY: the caller's promise.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(DeviceError {
            function: name,
            reason: format!("this driver does not have it ({error})"),
        }),
    }
}

impl Signals for Driver {
    fn words(&self) -> Result<Words, DeviceError> {
        self.device.attach()?;
        let bytes = WORDS * size_of::<AtomicU32>();
        // SAFETY: nothing is assumed of the memory until it is written below.
        let page = unsafe { result::malloc_host(bytes, PORTABLE_AND_MAPPED) };
        let page: *mut c_void = page.map_err(named("cuMemHostAlloc"))?;
        // SAFETY: the page has as many bytes.
        unsafe { page.write_bytes(0, bytes) };
        let mut address = 0;
        // SAFETY: the pointer is to a number, and the page was mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, page, 0) }
            .result()
            .map_err(named("cuMemHostGetDevicePointer"))?;
        // SAFETY: the page is never released, it is aligned, all bits are numbers, and whoever else writes it is the
        // device, a word at a time.
        let host = unsafe { std::slice::from_raw_parts(page.cast::<AtomicU32>(), WORDS) };
        Ok(Words {
            address: Address(address),
            host,
        })
    }

    fn record_all(&self) -> Result<Event, DeviceError> {
        let made = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let made = made.map_err(named("cuEventCreate"))?;
        // SAFETY: the context is never released, and the event was made above, for it: it is the current one.
        let recorded = unsafe { (self.record_all)(self.device.context, made) };
        let made = Event(made.expose_provenance());
        if let Err(error) = recorded.result() {
            self.device.forget(made);
            return Err(named("cuCtxRecordEvent")(error));
        }
        Ok(made)
    }

    fn write(&self, stream: Stream, word: Address, value: u32) -> Result<(), DeviceError> {
        // SAFETY: the word is of a page that is never released, and streams are never destroyed.
        unsafe { (self.write)(raw_stream(stream), word.0, value, WITH_FENCE) }
            .result()
            .map_err(named("cuStreamWriteValue32"))
    }
}
