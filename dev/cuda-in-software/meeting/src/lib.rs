//! The driver in software, as the libraries beside it call it: meetings on its streams.

use libloading::Library;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

/// What checks that bytes may be read (0), written (1) or moved on (2).
pub type Check = extern "C" fn(*const c_void, u64, u64, u32) -> u32;
/// What the members of a meeting do; 0, or a number that says what did not fit.
pub type Body = unsafe extern "C" fn(*const c_void, Check, *const c_void) -> u32;
/// What says whether members of other processes have come.
pub type Ready = unsafe extern "C" fn(*const c_void) -> u32;

/// A member's part in a meeting: as in `meet.rs` of the driver.
#[repr(C)]
pub struct Part {
    /// Which meeting: the same for all members.
    pub key: u64,
    /// Which member this is.
    pub member: u32,
    /// How many there are in this process.
    pub members: u32,
    /// What they do; the driver takes that of the member who comes first.
    pub body: Body,
    /// If others are to have come.
    pub ready: Option<Ready>,
    /// What the functions are given.
    pub brought: usize,
}

/// How memory is looked at: bytes that are computed with, or written, or moved on, which nothing need have written.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum How {
    /// They are computed with.
    Read = 0,
    /// They are written.
    Write = 1,
    /// They are moved on.
    Move = 2,
}

/// Memory of devices, which the driver looks at before a body uses it.
pub struct Memory {
    /// What the body was given.
    pub check: Check,
    /// As well.
    pub context: *const c_void,
}

/// Memory is not there; the driver says why.
#[derive(Clone, Copy, Debug)]
pub struct NotThere;

impl Memory {
    /// Returns some bytes.
    ///
    /// # Errors
    /// If the driver does not let them be read.
    pub fn get(&self, at: u64, bytes: usize, how: How) -> Result<Vec<u8>, NotThere> {
        match (self.check)(self.context, at, bytes as u64, how as u32) {
            _ if bytes == 0 => Ok(Vec::new()),
            // SAFETY: the driver has said that the bytes are there.
            0 => Ok(unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec()),
            _ => Err(NotThere),
        }
    }

    /// Writes some bytes.
    ///
    /// # Errors
    /// If the driver does not let them be written.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), NotThere> {
        match (self.check)(self.context, at, bytes.len() as u64, How::Write as u32) {
            _ if bytes.is_empty() => Ok(()),
            0 => {
                // SAFETY: the driver has said that the bytes are there.
                unsafe { (at as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            _ => Err(NotThere),
        }
    }
}

struct Driver {
    meet: unsafe extern "C" fn(usize, *const c_char, *const Part, usize) -> u32,
    leave: unsafe extern "C" fn(*const u64, usize, u32) -> u32,
    device: unsafe extern "C" fn(*mut i32) -> u32,
    uuid: unsafe extern "C" fn(*mut Gpu, i32) -> u32,
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
                uuid: *library.get(b"cuDeviceGetUuid_v2").expect(missing),
                _library: library,
            }
        }
    })
}

/// Puts meetings on a stream, and says whether the driver takes them.
pub fn meet(stream: usize, name: &str, parts: &[Part]) -> bool {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: the parts are there, and what they bring is never released.
    unsafe { (driver().meet)(stream, name.as_ptr(), parts.as_ptr(), parts.len()) == 0 }
}

/// Lets a member's streams go on without meetings.
pub fn leave(keys: &[u64], member: usize) {
    // SAFETY: the keys are there.
    unsafe { (driver().leave)(keys.as_ptr(), keys.len(), member as u32) };
}

/// Which GPU of the machine.
pub type Gpu = [u8; 16];

/// Returns the GPU whose context is current.
pub fn gpu() -> Option<Gpu> {
    let (mut device, mut gpu) = (0, [0; 16]);
    // SAFETY: the pointers are to a number and to 16 bytes.
    let found =
        unsafe { (driver().device)(&mut device) == 0 && (driver().uuid)(&mut gpu, device) == 0 };
    found.then_some(gpu)
}
