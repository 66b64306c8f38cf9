//! CUDA's driver, as far as it is needed beside CubeCL: a device, streams, events, and memory to stage host blocks in.

use crate::device::{Address, DeviceError, Event, Gpu, Stream};
use cudarc::driver::result::{self, ctx, device, event, primary_ctx, stream};
use cudarc::driver::{DriverError, sys};
use std::sync::Arc;

/// One GPU, through the context that CubeCL has too: the device's primary one.
pub struct Device {
    pub(crate) context: sys::CUcontext,
    pub(crate) number: sys::CUdevice,
}

// SAFETY: a context and a device are handles that any thread may use; the driver locks what it has to.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// `CUmemAccessDesc`: which device may do what with memory. Its layout is fixed; the fields' names differ between
/// CUDA's versions.
#[repr(C)]
pub(crate) struct Access {
    location_type: u32,
    device: i32,
    flags: u32,
}

const _: () = {
    assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());
    assert!(align_of::<Access>() == align_of::<sys::CUmemAccessDesc>());
    assert!(
        std::mem::offset_of!(Access, flags) == std::mem::offset_of!(sys::CUmemAccessDesc, flags)
    );
    assert!(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32 == Access::ON_DEVICE);
    assert!(
        sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32 == Access::READ_WRITE
    );
};

impl Access {
    pub(crate) const ON_DEVICE: u32 = 1;
    const READ_WRITE: u32 = 3;

    /// Lets a device read and write.
    pub(crate) fn of(device: sys::CUdevice) -> Self {
        Self {
            location_type: Self::ON_DEVICE,
            device,
            flags: Self::READ_WRITE,
        }
    }
}

/// Returns why GPU `index` cannot compute, as far as CUDA's libraries tell without touching it; `None` if they tell
/// nothing against it.
pub fn missing(index: usize) -> Option<String> {
    // SAFETY: it loads libraries by NVIDIA's names.
    let (driver, compiler) = unsafe {
        (
            sys::is_culib_present(),
            cudarc::nvrtc::sys::is_culib_present(),
        )
    };
    if !driver {
        return Some(
            "NVIDIA's driver (libcuda) cannot be loaded: install the driver, or compute on another backend".into(),
        );
    }
    if let Err(error) = result::init() {
        return Some(format!(
            "NVIDIA's driver does not start ({error}): look at what `nvidia-smi` says"
        ));
    }
    let count = match device::get_count() {
        Ok(count) => count as usize,
        Err(error) => return Some(format!("NVIDIA's driver does not count its GPUs ({error})")),
    };
    if index >= count {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES");
        let visible = visible.map_or_else(
            |_| "CUDA_VISIBLE_DEVICES is not set".into(),
            |value| format!("CUDA_VISIBLE_DEVICES is `{value}`"),
        );
        return Some(format!(
            "NVIDIA's driver shows this process {count} GPUs, of which GPU {index} is none ({visible}): name devices \
             from 0 on, or let it see more"
        ));
    }
    if !compiler {
        return Some(
            "CUDA's run-time compiler (libnvrtc) cannot be loaded: install the CUDA toolkit, and let LD_LIBRARY_PATH \
             name its folder of libraries"
                .into(),
        );
    }
    match capability(index) {
        Ok(capability) => too_old(capability),
        Err(error) => Some(format!(
            "NVIDIA's driver does not say what GPU {index} can do ({error})"
        )),
    }
}

/// Returns the compute capability of a GPU.
fn capability(index: usize) -> Result<(i32, i32), DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let device = device::get(i32::try_from(index).unwrap_or(i32::MAX))?;
    // SAFETY: a device that the driver has just given, and it is initialised.
    let of = |which| unsafe { device::get_attribute(device, which) };
    Ok((of(MAJOR)?, of(MINOR)?))
}

/// The oldest compute capability. Below it, CubeCL hands kernels a pointer to what they take by value, and those that
/// burn-dist writes in CUDA would read addresses that are none.
const CAPABILITY_MIN: (i32, i32) = (7, 0);

/// Returns why a GPU of this compute capability is not used, if it is too old.
fn too_old(capability: (i32, i32)) -> Option<String> {
    let ((major, minor), (least, _)) = (capability, CAPABILITY_MIN);
    (capability < CAPABILITY_MIN).then(|| {
        format!(
            "its compute capability is {major}.{minor}, and burn-dist's kernels need {least}.0: take a GPU of Volta's \
             generation (2017) or later, or compute on another backend"
        )
    })
}

pub(crate) fn named(function: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| {
        let reason = match (error.error_name(), error.error_string()) {
            (Ok(name), Ok(text)) => {
                format!("{} ({})", text.to_string_lossy(), name.to_string_lossy())
            }
            _ => error.to_string(),
        };
        DeviceError { function, reason }
    }
}

fn number(ordinal: usize) -> Result<sys::CUdevice, DeviceError> {
    let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
    result::init().map_err(named("cuInit"))?;
    device::get(ordinal).map_err(named("cuDeviceGet"))
}

/// Returns the UUID of a GPU.
pub fn identity(ordinal: usize) -> Result<[u8; 16], DeviceError> {
    let uuid = device::get_uuid(number(ordinal)?).map_err(named("cuDeviceGetUuid"))?;
    Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

/// Returns a GPU, whose memory all others that this process sees may read and write where the hardware lets them.
///
/// Within a process, NCCL lets one GPU use another one's buffers directly, and expects them to be accessible. Memory of
/// stream-ordered pools, which CubeCL hands out, is not before it is asked for. (NCCL user guide:
/// NCCL_P2P_DIRECT_DISABLE; CUDA driver API: cuMemPoolSetAccess.)
pub fn open(ordinal: usize) -> Result<Arc<Device>, DeviceError> {
    let this = number(ordinal)?;
    let capability = capability(ordinal).map_err(named("cuDeviceGetAttribute"))?;
    if let Some(reason) = too_old(capability) {
        let function = "the choice of a GPU";
        return Err(DeviceError { function, reason });
    }
    // SAFETY: the device is there. The context is never released: CubeCL uses it as long as the process lives.
    let context =
        unsafe { primary_ctx::retain(this) }.map_err(named("cuDevicePrimaryCtxRetain"))?;
    let gpu = Device {
        context,
        number: this,
    };
    gpu.attach()?;
    if has_pools(this)? {
        for peer in 0..device::get_count().map_err(named("cuDeviceGetCount"))? {
            let peer = device::get(peer).map_err(named("cuDeviceGet"))?;
            if peer != this {
                gpu.let_in(peer)?;
            }
        }
    }
    Ok(Arc::new(gpu))
}

impl Device {
    /// Lets another GPU use the memory of this one's pool.
    fn let_in(&self, peer: sys::CUdevice) -> Result<(), DeviceError> {
        if !can_access(peer, self.number)? {
            // NCCL knows that too, and does not do so.
            return Ok(());
        }
        // SAFETY: the device is there.
        let pool = unsafe { device::get_mem_pool(self.number) };
        let pool = pool.map_err(named("cuDeviceGetMemPool"))?;
        let access = Access::of(peer);
        // SAFETY: the description has the layout of `CUmemAccessDesc` (checked above), and one of them is passed.
        unsafe { sys::cuMemPoolSetAccess(pool, (&raw const access).cast(), 1) }
            .result()
            .map_err(named("cuMemPoolSetAccess"))
    }
}

/// Returns whether a backend takes memory of a GPU from a pool; other memory NCCL makes accessible itself.
pub(crate) fn has_pools(of: sys::CUdevice) -> Result<bool, DeviceError> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as POOLS;
    // SAFETY: the device is there.
    let pools = unsafe { device::get_attribute(of, POOLS) };
    Ok(pools.map_err(named("cuDeviceGetAttribute"))? != 0)
}

/// Returns whether a GPU may use the memory of another one.
pub(crate) fn can_access(one: sys::CUdevice, other: sys::CUdevice) -> Result<bool, DeviceError> {
    let mut can = 0;
    // SAFETY: the pointer is to a number.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, one, other) }
        .result()
        .map_err(named("cuDeviceCanAccessPeer"))?;
    Ok(can != 0)
}

pub(crate) fn raw_stream(stream: Stream) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0)
}

pub(crate) fn raw_event(event: Event) -> sys::CUevent {
    std::ptr::with_exposed_provenance_mut(event.0)
}

impl Gpu for Device {
    fn attach(&self) -> Result<(), DeviceError> {
        // SAFETY: the context was retained and is never released.
        unsafe { ctx::set_current(self.context) }.map_err(named("cuCtxSetCurrent"))
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        // Not ordered with the default stream, as CubeCL's are not.
        let stream = stream::create(stream::StreamKind::NonBlocking);
        let stream = stream.map_err(named("cuStreamCreate"))?;
        Ok(Stream(stream.expose_provenance()))
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        let made = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let made = made.map_err(named("cuEventCreate"))?;
        // SAFETY: both are alive: streams are never destroyed, and the event was made above.
        let recorded = unsafe { event::record(made, raw_stream(stream)) };
        let made = Event(made.expose_provenance());
        if let Err(error) = recorded {
            self.forget(made);
            return Err(named("cuEventRecord")(error));
        }
        Ok(made)
    }

    fn is_over(&self, event: Event) -> Result<bool, DeviceError> {
        // SAFETY: the event is alive: it is released with `forget`.
        match unsafe { event::query(raw_event(event)) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(named("cuEventQuery")(error)),
        }
    }

    fn wait(&self, on: Stream, event: Event) -> Result<(), DeviceError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive: streams are never destroyed, and events are released with `forget`.
        unsafe { stream::wait_event(raw_stream(on), raw_event(event), flags) }
            .map_err(named("cuStreamWaitEvent"))
    }

    fn forget(&self, event: Event) {
        // SAFETY: the event is alive, and the caller gives it up. That an earlier call has failed was reported then.
        let _ = unsafe { event::destroy(raw_event(event)) };
    }

    fn alloc(&self, bytes: usize) -> Result<Address, DeviceError> {
        // SAFETY: the memory is written before it is read, by an upload or by NCCL.
        let memory = unsafe { result::malloc_sync(bytes.max(1)) };
        Ok(Address(memory.map_err(named("cuMemAlloc"))?))
    }

    unsafe fn free(&self, memory: Address) {
        // SAFETY: the caller's promise. A device that has failed takes nothing back.
        let _ = unsafe { result::free_sync(memory.0) };
    }

    unsafe fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise. Returns when the bytes have been read; what NCCL reads afterwards is ordered by
        // the wait below.
        unsafe { result::memcpy_htod_sync(to.0, bytes) }.map_err(named("cuMemcpyHtoD"))?;
        // A copy from pageable memory may return before it has arrived, and is ordered with the default stream only.
        // SAFETY: the default stream is always there.
        unsafe { stream::synchronize(stream::null()) }.map_err(named("cuStreamSynchronize"))
    }

    unsafe fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtoh_sync(bytes, from.0) }.map_err(named("cuMemcpyDtoH"))
    }
}

#[cfg(test)]
mod tests {
    use super::too_old;

    #[test]
    fn gpus_before_volta_are_too_old() {
        for (capability, is_too_old) in [((6, 1), true), ((7, 0), false), ((9, 0), false)] {
            assert_eq!(too_old(capability).is_some(), is_too_old, "{capability:?}");
        }
        let text = too_old((6, 1)).expect("a reason");
        assert!(text.contains("6.1") && text.contains("need 7.0"), "{text}");
    }
}
