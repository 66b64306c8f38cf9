//! Modules, and kernels that are launched.

use super::device::{BLOCK_MAX, GRID_MAX, SHARED_MAX, THREADS_MAX};
use super::{Handle, call, current, enqueue, put};
use crate::fault::Fault;
use crate::module::{Kernel, Module};
use crate::queue::Work;
use crate::run::{Launch, Three};
use crate::status::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_RESOURCES, Status};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

/// Modules by handle, and kernels: with the device of the context that has them.
#[derive(Default)]
struct Loaded {
    next: Handle,
    modules: HashMap<Handle, (usize, Arc<Module>)>,
    kernels: HashMap<Handle, (usize, Arc<Kernel>)>,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

fn loaded<T>(then: impl FnOnce(&mut Loaded) -> T) -> T {
    let mut loaded = LOADED.lock().expect("no panic among modules");
    then(loaded.get_or_insert_default())
}

impl Loaded {
    fn handle(&mut self) -> Handle {
        self.next += 16;
        0x4000_0000 + self.next
    }
}

/// # Safety
/// As NVIDIA's: the first pointer is to a handle, and the image ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(to: *mut Handle, image: *const c_char) -> Status {
    call("cuModuleLoadData", || {
        let device = current()?;
        // SAFETY: the caller's promise.
        let module = unsafe { Module::load(image) }?;
        let handle = loaded(|loaded| {
            let handle = loaded.handle();
            loaded.modules.insert(handle, (device, Arc::new(module)));
            handle
        });
        // SAFETY: the caller's promise.
        unsafe { put(to, handle) }
    })
}

/// Kernels that are queued still run.
#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> Status {
    call("cuModuleUnload", || {
        let gone = loaded(|loaded| loaded.modules.remove(&module));
        gone.map(drop).ok_or_else(|| INVALID_HANDLE.into())
    })
}

/// # Safety
/// As NVIDIA's: the first pointer is to a handle, and the name ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    to: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Status {
    call("cuModuleGetFunction", || {
        let found = loaded(|loaded| loaded.modules.get(&module).cloned());
        let (device, module) = found.ok_or_else(|| Fault::from(INVALID_HANDLE))?;
        if name.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map_err(|_| Fault::from(INVALID_VALUE))?;
        let kernel = module.kernel(name)?;
        let handle = loaded(|loaded| {
            let handle = loaded.handle();
            loaded.kernels.insert(handle, (device, Arc::new(kernel)));
            handle
        });
        // SAFETY: the caller's promise.
        unsafe { put(to, handle) }
    })
}

fn kernel(handle: Handle) -> Result<(usize, Arc<Kernel>), Fault> {
    let found = loaded(|loaded| loaded.kernels.get(&handle).cloned());
    found.ok_or_else(|| Fault::new(INVALID_HANDLE, "no kernel"))
}

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`, and that of dynamic shared memory.
const THREADS: c_uint = 0;
const SHARED: c_uint = 8;

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(of: Handle, which: c_uint, value: c_int) -> Status {
    call("cuFuncSetAttribute", || {
        let (_, kernel) = kernel(of)?;
        if which == SHARED && !(0..=SHARED_MAX).contains(&value) {
            let text = format!("{}: {value} bytes of shared memory", kernel.name);
            return Err(Fault::new(INVALID_VALUE, text));
        }
        Ok(())
    })
}

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetAttribute(to: *mut c_int, which: c_uint, of: Handle) -> Status {
    call("cuFuncGetAttribute", || {
        let (_, kernel) = kernel(of)?;
        let value = match which {
            THREADS if kernel.threads_max > 0 => kernel.threads_max as c_int,
            THREADS => THREADS_MAX,
            SHARED => SHARED_MAX,
            _ => return Err(INVALID_VALUE.into()),
        };
        // SAFETY: the caller's promise.
        unsafe { put(to, value) }
    })
}

/// Checks a launch against the device's limits and the kernel's.
fn check(kernel: &Kernel, grid: Three, block: Three, shared: c_uint) -> Result<(), Fault> {
    let wrong = |status, what: String| Err(Fault::new(status, format!("{}: {what}", kernel.name)));
    let fits = |of: Three, most: [c_int; 3]| {
        let directions = [of.x, of.y, of.z].into_iter().zip(most);
        directions
            .into_iter()
            .all(|(size, most)| (1..=most as u32).contains(&size))
    };
    if !fits(grid, GRID_MAX) {
        return wrong(
            INVALID_VALUE,
            format!("{} x {} x {} blocks", grid.x, grid.y, grid.z),
        );
    }
    let threads = block.count();
    if !fits(block, BLOCK_MAX) || threads > THREADS_MAX as u64 {
        let text = format!("{} x {} x {} threads", block.x, block.y, block.z);
        return wrong(INVALID_VALUE, text);
    }
    if kernel.threads_max > 0 && threads > kernel.threads_max {
        let text = format!(
            "{threads} threads, and it is compiled for {}",
            kernel.threads_max
        );
        return wrong(OUT_OF_RESOURCES, text);
    }
    if shared > SHARED_MAX as u32 {
        return wrong(INVALID_VALUE, format!("{shared} bytes of shared memory"));
    }
    Ok(())
}

/// # Safety
/// As NVIDIA's: there is a pointer for each of the kernel's parameters.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    of: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> Status {
    call("cuLaunchKernel", || {
        let device = current()?;
        let (owner, kernel) = kernel(of)?;
        if owner != device {
            let text = format!("{} of device {owner}, on device {device}", kernel.name);
            return Err(Fault::new(INVALID_HANDLE, text));
        }
        let three = |x, y, z| Three { x, y, z };
        let (grid, block) = (
            three(grid_x, grid_y, grid_z),
            three(block_x, block_y, block_z),
        );
        check(&kernel, grid, block, shared_bytes)?;
        if !extra.is_null() || parameters.is_null() && !kernel.sizes.is_empty() {
            return Err(Fault::new(
                INVALID_VALUE,
                format!("{}: its parameters", kernel.name),
            ));
        }
        let mut copied = Vec::new();
        for (at, bytes) in kernel.sizes.iter().enumerate() {
            let mut words = vec![0_u128; bytes.div_ceil(16)].into_boxed_slice();
            // SAFETY: the caller's promise; the kernel says how long each is.
            unsafe {
                let from = *parameters.add(at);
                if from.is_null() {
                    let text = format!("{}: parameter {at} is null", kernel.name);
                    return Err(Fault::new(INVALID_VALUE, text));
                }
                from.cast::<u8>()
                    .copy_to_nonoverlapping(words.as_mut_ptr().cast(), *bytes);
            }
            copied.push(words);
        }
        let name = format!("cuLaunchKernel({})", kernel.name);
        let launch = Launch {
            kernel,
            grid,
            block,
            shared_bytes: shared_bytes as usize,
            parameters: copied,
        };
        let work = Work::Run(Box::new(move |accesses| launch.run(accesses)));
        enqueue(&name, stream, work)
    })
}
