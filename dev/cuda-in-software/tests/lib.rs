//! The driver as CubeCL and burn-dist call it: through cudarc's functions, without its types that take care.

// Handles are the driver's numbers: it looks at them itself, and a wrong one is a test of that.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use cudarc::driver::result::{self, ctx, device, event, function, module, primary_ctx, stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUfunction, CUstream};
use cudarc::driver::{DriverError, result::stream::StreamKind};
use std::ffi::{CString, c_void};

/// What calls return.
pub type Done<T = ()> = Result<T, DriverError>;

/// A device, whose context is current.
pub struct Gpu {
    /// Its number.
    pub number: i32,
}

impl Gpu {
    /// Makes a device's context current.
    pub fn open(number: i32) -> Self {
        result::init().expect("the driver in software: `cargo xtask cuda` sets LD_LIBRARY_PATH");
        let gpu = Gpu { number };
        gpu.attach();
        gpu
    }

    /// Makes its context current again.
    pub fn attach(&self) {
        // SAFETY: the device is there, and its context is never released.
        unsafe {
            let device = device::get(self.number).expect("a device");
            let context = primary_ctx::retain(device).expect("a context");
            ctx::set_current(context).expect("a context");
        }
    }
}

/// How many devices there are.
pub fn devices() -> i32 {
    result::init().expect("the driver in software");
    device::get_count().expect("a count")
}

/// A stream that waits for no other.
pub fn new_stream() -> CUstream {
    stream::create(StreamKind::NonBlocking).expect("a stream")
}

/// An event.
pub fn new_event() -> CUevent {
    event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).expect("an event")
}

/// Memory for some floats.
pub fn floats(count: usize) -> CUdeviceptr {
    // SAFETY: nothing is assumed of the memory.
    unsafe { result::malloc_sync(4 * count) }.expect("memory")
}

/// Memory that holds some floats.
pub fn filled(values: &[f32]) -> CUdeviceptr {
    let memory = floats(values.len());
    // SAFETY: the memory is as long as the values.
    unsafe { result::memcpy_htod_sync(memory, values) }.expect("a copy");
    memory
}

/// Reads floats, when all before is over.
pub fn read(from: CUdeviceptr, count: usize) -> Done<Vec<f32>> {
    let mut values = vec![0.0; count];
    // SAFETY: whether memory is there is what is tested.
    unsafe { result::memcpy_dtoh_sync(&mut values, from) }?;
    Ok(values)
}

/// Lets a stream wait for what another holds by now.
pub fn follow(first: CUstream, then: CUstream) -> Done {
    let event = new_event();
    // SAFETY: the streams and the event are there.
    unsafe {
        event::record(event, first)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        stream::wait_event(then, event, flags)?;
        event::destroy(event)
    }
}

/// Compiles a text and returns one of its kernels.
///
/// # Errors
/// What the compiler says.
pub fn kernel(text: &str, name: &str) -> Result<CUfunction, String> {
    use cudarc::nvrtc::result as nvrtc;
    let text = CString::new(text).expect("a text");
    let program = nvrtc::create_program(&text, None).expect("a program");
    // SAFETY: the program is there, and destroyed once; what the driver is given ends with a zero.
    unsafe {
        let compiled = nvrtc::compile_program(program, &["--gpu-architecture=sm_61"]);
        let log = nvrtc::get_program_log(program).expect("a log");
        let image = compiled.and_then(|()| nvrtc::get_ptx(program));
        nvrtc::destroy_program(program).expect("a program");
        let Ok(image) = image else {
            return Err(log.iter().map(|c| *c as u8 as char).collect());
        };
        let module = module::load_data(image.as_ptr().cast()).expect("a module");
        let name = CString::new(name).expect("a name");
        module::get_function(module, name).map_err(|error| format!("{error:?}"))
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Blocks of a grid.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes that they share.
    pub shared: u32,
}

/// Blocks of threads that share nothing.
pub fn shape(blocks: u32, threads: u32) -> Shape {
    Shape {
        blocks,
        threads,
        shared: 0,
    }
}

/// Launches a kernel, whose parameters are words of 64 bits.
pub fn launch(kernel: CUfunction, shape: Shape, stream: CUstream, parameters: &[u64]) -> Done {
    let (grid, block) = ((shape.blocks, 1, 1), (shape.threads, 1, 1));
    let pointers = parameters
        .iter()
        .map(|word| (&raw const *word).cast_mut().cast());
    let mut pointers: Vec<*mut c_void> = pointers.collect();
    // SAFETY: whether the launch is as it should be is what is tested.
    unsafe {
        function::set_function_attribute(
            kernel,
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            shape.shared as i32,
        )?;
        result::launch_kernel(kernel, grid, block, shape.shared, stream, &mut pointers)
    }
}

/// A kernel that adds one to `n` floats, into others.
pub const ADD_ONE: &str = r#"
extern "C" __global__ void __launch_bounds__(256) add_one(const float* from, float* to, unsigned long n) {
    unsigned long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] + 1.0f;
}
"#;

/// That kernel.
pub fn add_one() -> CUfunction {
    kernel(ADD_ONE, "add_one").expect("a kernel")
}
