//! The driver beside this library.

use crate::status::{SUCCESS, Status, UNHANDLED_CUDA};
use libloading::Library;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

/// What checks that bytes may be read (0), written (1) or moved on (2).
pub(crate) type Check = extern "C" fn(*const c_void, u64, u64, u32) -> u32;
/// What the members of a meeting do.
pub(crate) type Body = unsafe extern "C" fn(*const c_void, Check, *const c_void) -> u32;

/// A member's part in a meeting: as in `meet.rs` of the driver.
#[repr(C)]
pub(crate) struct Part {
    pub(crate) key: u64,
    pub(crate) member: u32,
    pub(crate) members: u32,
    pub(crate) body: Body,
    pub(crate) brought: usize,
}

struct Driver {
    meet: unsafe extern "C" fn(usize, *const c_char, *const Part, usize) -> u32,
    leave: unsafe extern "C" fn(*const u64, usize, u32) -> u32,
    device: unsafe extern "C" fn(*mut i32) -> u32,
    /// Kept open as long as its functions may be called.
    _library: Library,
}

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        // SAFETY: the driver is loaded already, for there are streams; the signatures are those of its `meet.rs`.
        unsafe {
            let library = Library::new("libcuda.so.1").expect("the driver in software");
            let missing = "a driver in software, and no other";
            Driver {
                meet: *library.get(b"softwareMeet").expect(missing),
                leave: *library.get(b"softwareLeave").expect(missing),
                device: *library.get(b"cuCtxGetDevice").expect(missing),
                _library: library,
            }
        }
    })
}

/// Puts meetings on a stream.
pub(crate) fn meet(stream: usize, name: &str, parts: &[Part]) -> Status {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the parts are there, and what they bring is never released.
    match unsafe { (driver().meet)(stream, name.as_ptr(), parts.as_ptr(), parts.len()) } {
        0 => SUCCESS,
        _ => UNHANDLED_CUDA,
    }
}

/// Lets a member's streams go on without meetings.
pub(crate) fn leave(keys: &[u64], member: usize) {
    // SAFETY: the keys are there.
    unsafe { (driver().leave)(keys.as_ptr(), keys.len(), member as u32) };
}

/// Returns the device whose context is current.
pub(crate) fn device() -> Option<i32> {
    let mut device = 0;
    // SAFETY: the pointer is to a number.
    match unsafe { (driver().device)(&mut device) } {
        0 => Some(device),
        _ => None,
    }
}
