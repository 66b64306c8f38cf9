//! Modules: shared objects that the compiler beside this driver has made, and the kernels in them.

use crate::fault::Fault;
use crate::run::{self, Driver, Thread};
use crate::status::{INVALID_IMAGE, NOT_FOUND, Status};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// What an image starts with; the path of the shared object follows.
const MARK: &str = "// CUDA in software: ";

/// A shared object of kernels.
pub(crate) struct Module {
    library: Library,
}

/// A kernel.
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) run: unsafe extern "C" fn(*const *mut c_void),
    pub(crate) enter: unsafe extern "C" fn(*const Thread),
    /// Bytes of each parameter.
    pub(crate) sizes: Vec<usize>,
    /// `__launch_bounds__`, or 0.
    pub(crate) threads_max: u64,
    /// Kept open as long as its functions may be called.
    _module: Arc<Module>,
}

impl Module {
    /// # Safety
    /// The image ends with a zero.
    pub(crate) unsafe fn load(image: *const c_char) -> Result<Module, Status> {
        if image.is_null() {
            return Err(INVALID_IMAGE);
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(image) };
        let text = text.to_str().map_err(|_| INVALID_IMAGE)?;
        let path = text.strip_prefix(MARK).ok_or(INVALID_IMAGE)?;
        // SAFETY: the compiler beside this driver has made it, and it runs nothing when it is opened.
        let library = unsafe { Library::new(path.trim_end()) }.map_err(|_| INVALID_IMAGE)?;
        // SAFETY: what the compiler puts into all objects; they keep the table for good.
        unsafe {
            let attach = library
                .get::<unsafe extern "C" fn(*const Driver)>(b"software_attach")
                .map_err(|_| INVALID_IMAGE)?;
            attach(Box::leak(Box::new(run::driver())));
        }
        Ok(Module { library })
    }

    /// Returns the kernel of a name.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel, Fault> {
        // SAFETY: what the compiler writes for each kernel, see `kernels.rs` there.
        unsafe {
            let run = self.symbol("software_run_", name)?;
            let enter = self.symbol("software_enter", "")?;
            let sizes: *const u32 = self.symbol("software_sizes_", name)?;
            let threads: *const u32 = self.symbol("software_threads_", name)?;
            // The first number says how many there are.
            let sizes = std::slice::from_raw_parts(sizes.add(1), *sizes as usize);
            Ok(Kernel {
                name: name.into(),
                run,
                enter,
                sizes: sizes.iter().map(|bytes| *bytes as usize).collect(),
                threads_max: u64::from(*threads),
                _module: Arc::clone(self),
            })
        }
    }

    /// # Safety
    /// The symbol is of type `T`.
    unsafe fn symbol<T: Copy>(&self, prefix: &str, name: &str) -> Result<T, Fault> {
        let symbol = format!("{prefix}{name}");
        // SAFETY: the caller's promise.
        let found = unsafe { self.library.get::<T>(symbol.as_bytes()) };
        let missing = |error| Fault::new(NOT_FOUND, format!("no kernel {name}: {error}"));
        found.map(|found| *found).map_err(missing)
    }
}
