//! cuBLASLt as an engine: products of tensors with one scale each.
//!
//! It works on a stream of its own, since CubeCL's cannot be had: the host waits for CubeCL before and for the library
//! after.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::{Mutex, OnceLock, PoisonError};

use burn_dist_plan::policy::Fp8;
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;
use cubecl::future::block_on;

use cubecl::server::Handle;
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::result::{ctx, device as driver, event, primary_ctx, stream};
use cudarc::driver::sys::{CUcontext, CUevent_flags, CUstream};
use sys::cublasLtMatmulDescAttributes_t as Attribute;

use super::call::{Call, empty, try_out};
use super::task::Task;
use burn_dist_kernels::cuda::engine::{Device, Engine, EngineError};
use burn_dist_kernels::cuda::product::{Out, Product, Scales};

/// Memory that the library may use, as NVIDIA recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Returns the version of the library, if it is there.
pub(super) fn version() -> Option<usize> {
    static VERSION: OnceLock<Option<usize>> = OnceLock::new();
    // cudarc panics where a library has not all functions of the version that it was built for.
    *VERSION.get_or_init(|| {
        // SAFETY: it only opens the library, and a function without arguments is called if there is one.
        catch_unwind(|| unsafe { sys::is_culib_present().then(|| sys::cublasLtGetVersion()) })
            .ok()
            .flatten()
    })
}

/// NVIDIA's library.
#[derive(Default)]
pub(super) struct CublasLt {
    devices: Mutex<HashMap<usize, Library>>,
}

/// The library on a device, opened once.
#[derive(Clone, Copy)]
struct Library {
    context: CUcontext,
    stream: CUstream,
    handle: sys::cublasLtHandle_t,
}

// SAFETY: handles that any thread may use once the context is current there, and which live as long as the process; the
// library's handle is used by one thread at a time, under the lock of `devices`.
unsafe impl Send for Library {}

impl Engine<Call, Handle> for CublasLt {
    fn name(&self) -> &'static str {
        "cublaslt"
    }

    fn supports(&self, device: &Device, product: &Product) -> Result<(), &'static str> {
        if device.cublaslt.is_none() {
            return Err("the library is not there");
        }
        if device.compute < (8, 9) {
            return Err("no tensor cores for float8");
        }
        if product.scales != [Scales::Tensor; 2] {
            return Err("one scale for each tensor");
        }
        if product.formats == [Fp8::E5M2; 2] {
            return Err("one operand has to be in e4m3");
        }
        if product.bias && product.out == Out::F32 {
            return Err("a bias is in 16 bits");
        }
        match [product.m, product.n, product.k]
            .iter()
            .all(|size| size.is_multiple_of(16) && *size > 0)
        {
            true => Ok(()),
            false => Err("sizes are not multiples of 16"),
        }
    }

    fn launch(
        &self,
        device: &Device,
        product: &Product,
        call: &Call,
    ) -> Result<Handle, EngineError> {
        let out = empty(call, product);
        let done = catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.compute(device, product, call, &out)
        }));
        let done = done.unwrap_or_else(|_| Err("the library lacks a function".into()));
        done.map(|()| out).map_err(|reason| EngineError::Failed {
            engine: self.name(),
            reason,
        })
    }

    fn try_out(&self, device: &Device, product: &Product, call: &Call) -> Result<(), EngineError> {
        try_out(self, device, product, call)
    }
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

impl CublasLt {
    fn compute(
        &self,
        device: &Device,
        product: &Product,
        call: &Call,
        out: &Handle,
    ) -> Result<(), String> {
        let client = &call.client;
        // The library multiplies by what it is given.
        let inverse = |scale: &Handle| {
            let inverse = client.empty(size_of::<f32>());
            Task::Invert.launch(client, 1, &[], &[scale, &inverse], vec![1]);
            inverse
        };
        let inverses = call.scales.each_ref().map(inverse);
        let workspace = client.empty(WORKSPACE_BYTES);
        let at = |handle: &Handle| client.get_resource(handle.clone()).map_err(text);
        let values = [at(&call.values[0])?, at(&call.values[1])?];
        let scales = [at(&inverses[0])?, at(&inverses[1])?];
        let (made, space) = (at(out)?, at(&workspace)?);
        let bias = call
            .bias
            .as_ref()
            .filter(|_| product.bias)
            .map(at)
            .transpose()?;
        block_on(client.sync()).map_err(text)?;

        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let library = match devices.get(&device.index) {
            Some(library) => *library,
            None => *devices
                .entry(device.index)
                .or_insert(Library::open(device.index)?),
        };
        // SAFETY: the context is the device's primary one, which is never given back.
        unsafe { ctx::set_current(library.context) }.map_err(text)?;
        let pointers = Pointers {
            values: values.each_ref().map(|found| found.resource().ptr),
            scales: Some(scales.each_ref().map(|found| found.resource().ptr)),
            bias: bias.as_ref().map(|found| found.resource().ptr),
            out: made.resource().ptr,
            workspace: space.resource().ptr,
        };
        // SAFETY: buffers have the sizes of the product and live until the stream is waited for, below; CubeCL has
        // done all that was enqueued before, and enqueues nothing that uses them meanwhile: the call has them.
        let enqueued = unsafe { library.enqueue(product, &pointers) };
        // SAFETY: the stream is this library's.
        let waited = unsafe { stream::synchronize(library.stream) }.map_err(text);
        enqueued.and(waited)
    }
}

/// Where buffers are.
#[derive(Clone, Copy)]
struct Pointers {
    values: [u64; 2],
    /// Factors of the values; without, they are in bf16.
    scales: Option<[u64; 2]>,
    bias: Option<u64>,
    out: u64,
    workspace: u64,
}

/// Measures a copy on the device by the driver, as [`seconds`] does.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// Both are device memory of so many bytes, of the this device, and nothing else uses them meanwhile.
pub unsafe fn copy_seconds(
    device: &Device,
    to: u64,
    from: u64,
    bytes: usize,
    repeats: usize,
) -> Result<f64, String> {
    let library = Library::open(device.index)?;
    let copy = || {
        // SAFETY: the caller's promise.
        unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, bytes, library.stream) }
            .map_err(text)
    };
    let took = library.time(repeats, copy);
    // SAFETY: the stream was waited for.
    unsafe { library.close() }?;
    took
}

/// Measures a product by the library, of values in float8 with one scale each, or of as many in bf16. Returns the
/// seconds of one of `repeats`, by events on the library's stream, after one that is not measured.
///
/// # Errors
/// The library's or the driver's.
pub fn seconds(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    product: &Product,
    is_bf16: bool,
    repeats: usize,
) -> Result<f64, String> {
    let wide = if is_bf16 { 2 } else { 1 };
    let Product { m, n, k, out, .. } = *product;
    // Any bits but those of what is no number.
    let values = [m, n].map(|rows| {
        let bytes = (0..rows * k * wide).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8 & 0xb7);
        client.create_from_slice(&bytes.collect::<Vec<u8>>())
    });
    let scales = [(); 2].map(|()| client.create_from_slice(&1.0f32.to_ne_bytes()));
    let (made, workspace) = (
        client.empty(m * n * out.bytes()),
        client.empty(WORKSPACE_BYTES),
    );
    let at = |handle: &Handle| client.get_resource(handle.clone()).map_err(text);
    let found = [
        at(&values[0])?,
        at(&values[1])?,
        at(&scales[0])?,
        at(&scales[1])?,
        at(&made)?,
        at(&workspace)?,
    ];
    let [a, b, a_scale, b_scale, out, space] = found.each_ref().map(|found| found.resource().ptr);
    block_on(client.sync()).map_err(text)?;
    let pointers = Pointers {
        values: [a, b],
        scales: (!is_bf16).then_some([a_scale, b_scale]),
        bias: None,
        out,
        workspace: space,
    };
    let library = Library::open(device.index)?;
    let enqueue = || {
        // SAFETY: buffers have the sizes of the product and live to the end of this function; `time` waits.
        unsafe { library.enqueue(product, &pointers) }
    };
    let took = library.time(repeats, enqueue);
    // SAFETY: the stream was waited for.
    unsafe { library.close() }?;
    took
}

impl Library {
    fn open(index: usize) -> Result<Self, String> {
        let number = i32::try_from(index).map_err(text)?;
        let device = driver::get(number).map_err(text)?;
        // SAFETY: a device that the driver has just given.
        let context = unsafe { primary_ctx::retain(device) }.map_err(text)?;
        // SAFETY: the context was just retained.
        unsafe { ctx::set_current(context) }.map_err(text)?;
        let stream = stream::create(stream::StreamKind::NonBlocking).map_err(text)?;
        let handle = lt::create_handle().map_err(text)?;
        Ok(Self {
            context,
            stream,
            handle,
        })
    }

    /// Returns the seconds of one of `repeats` pieces of work on the stream, after one that is not measured; waits for
    /// all of them.
    fn time(
        &self,
        repeats: usize,
        enqueue: impl Fn() -> Result<(), String>,
    ) -> Result<f64, String> {
        let new = || event::create(CUevent_flags::CU_EVENT_DEFAULT).map_err(text);
        let (start, end) = (new()?, new()?);
        let record = |event| {
            // SAFETY: the event and the stream are alive, in the context that is current.
            unsafe { event::record(event, self.stream) }.map_err(text)
        };
        let measured = || -> Result<(), String> {
            enqueue()?;
            record(start)?;
            for _ in 0..repeats {
                enqueue()?;
            }
            record(end)
        };
        let measured = measured();
        // SAFETY: the stream is alive; events were recorded on it if all went well, and are destroyed once.
        unsafe {
            stream::synchronize(self.stream).map_err(text)?;
            let milliseconds = measured.and_then(|()| event::elapsed(start, end).map_err(text));
            event::destroy(start).map_err(text)?;
            event::destroy(end).map_err(text)?;
            Ok(f64::from(milliseconds?) * 1e-3 / repeats as f64)
        }
    }

    /// Gives back what a measurement has opened.
    ///
    /// # Safety
    /// Nothing is enqueued any more, and it is not used again.
    unsafe fn close(self) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe {
            lt::destroy_handle(self.handle).map_err(text)?;
            stream::destroy(self.stream).map_err(text)
        }
    }

    /// Enqueues a product. The library's matrices lie by columns: its result is `[n, m]`, its first operand is `b`; of
    /// both, neighbours are what is added up.
    ///
    /// # Safety
    /// Pointers are to device memory of the sizes of the product, until the stream is done.
    unsafe fn enqueue(&self, product: &Product, at: &Pointers) -> Result<(), String> {
        let Product {
            m,
            n,
            k,
            formats,
            out,
            ..
        } = *product;
        let format = |format| match format {
            _ if at.scales.is_none() => sys::cudaDataType::CUDA_R_16BF,
            Fp8::E4M3 => sys::cudaDataType::CUDA_R_8F_E4M3,
            Fp8::E5M2 => sys::cudaDataType::CUDA_R_8F_E5M2,
        };
        let kind = match out {
            Out::F32 => sys::cudaDataType::CUDA_R_32F,
            Out::F16 => sys::cudaDataType::CUDA_R_16F,
            Out::BF16 => sys::cudaDataType::CUDA_R_16BF,
        };
        let description = Description::new()?;
        let set = |attribute, value: &[u8]| description.set(attribute, value);
        // CUBLAS_OP_T
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &1i32.to_ne_bytes())?;
        if let Some([a_scale, b_scale]) = at.scales {
            set(
                Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                &b_scale.to_ne_bytes(),
            )?;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                &a_scale.to_ne_bytes(),
            )?;
            // Sums go to f32 before they lose bits.
            set(
                Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                &0i8.to_ne_bytes(),
            )?;
        }
        if let Some(bias) = at.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                &epilogue.to_ne_bytes(),
            )?;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                &bias.to_ne_bytes(),
            )?;
        }
        let first = Layout::new(format(formats[1]), k, n)?;
        let second = Layout::new(format(formats[0]), k, m)?;
        let result = Layout::new(kind, n, m)?;
        let preference = Preference::new(WORKSPACE_BYTES)?;
        // SAFETY: all of them live until the end of this function.
        let found = unsafe {
            lt::get_matmul_algo_heuristic(
                self.handle,
                description.0,
                first.0,
                second.0,
                result.0,
                result.0,
                preference.0,
            )
        }
        .map_err(text)?;
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: as above; the pointers are the caller's promise. What is multiplied by zero is the result itself: it
        // is not read.
        unsafe {
            lt::matmul(
                self.handle,
                description.0,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                at.values[1] as *const c_void,
                first.0,
                at.values[0] as *const c_void,
                second.0,
                at.out as *const c_void,
                result.0,
                at.out as *mut c_void,
                result.0,
                &found.algo,
                at.workspace as *mut c_void,
                WORKSPACE_BYTES,
                self.stream.cast(),
            )
        }
        .map_err(text)
    }
}

/// How a product is computed; destroyed when dropped.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new() -> Result<Self, String> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        lt::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)
            .map(Self)
            .map_err(text)
    }

    fn set(&self, attribute: Attribute, value: &[u8]) -> Result<(), String> {
        // SAFETY: the description is alive, and the library reads as many bytes as there are.
        unsafe {
            lt::set_matmul_desc_attribute(self.0, attribute, value.as_ptr().cast(), value.len())
        }
        .map_err(text)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made once, dropped once. There is nothing to do about an error.
        let _ = unsafe { lt::destroy_matmul_desc(self.0) };
    }
}

/// How a matrix lies: by columns, one after the other; destroyed when dropped.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(kind: sys::cudaDataType, rows: usize, columns: usize) -> Result<Self, String> {
        lt::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
            .map(Self)
            .map_err(text)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made once, dropped once. There is nothing to do about an error.
        let _ = unsafe { lt::destroy_matrix_layout(self.0) };
    }
}

/// Preferences of an algorithm; destroyed when dropped.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(workspace: usize) -> Result<Self, String> {
        let made = lt::create_matmul_pref().map(Self).map_err(text)?;
        let attribute =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference is alive, and the attribute is as large as an usize.
        unsafe {
            lt::set_matmul_pref_attribute(
                made.0,
                attribute,
                (&raw const workspace).cast(),
                size_of::<usize>(),
            )
        }
        .map_err(text)?;
        Ok(made)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made once, dropped once. There is nothing to do about an error.
        let _ = unsafe { lt::destroy_matmul_pref(self.0) };
    }
}
