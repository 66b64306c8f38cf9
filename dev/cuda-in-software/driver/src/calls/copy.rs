//! Copies: rows of bytes, between memory of devices and the host's.

use super::context::device_of;
use super::give::is_locked;
use super::{Handle, at_once, call, current, enqueue};
use crate::access::{self, Accesses, How};
use crate::fault::Fault;
use crate::memory;
use crate::queue::Work;
use crate::status::{INVALID_VALUE, Status};
use std::ffi::c_uint;

/// Rows of bytes.
#[derive(Clone, Copy)]
struct Rows {
    to: u64,
    to_pitch: u64,
    from: u64,
    from_pitch: u64,
    bytes: u64,
    count: u64,
}

/// On which sides of a copy a device is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
    Across,
}

impl Rows {
    fn one(to: u64, from: u64, bytes: usize) -> Self {
        Rows {
            to,
            to_pitch: 0,
            from,
            from_pitch: 0,
            bytes: bytes as u64,
            count: 1,
        }
    }

    /// Copies them.
    fn run(self, way: Way, accesses: &Accesses) -> Result<(), Fault> {
        for row in 0..self.count {
            let (to, from) = (
                self.to + row * self.to_pitch,
                self.from + row * self.from_pitch,
            );
            let how = if way == Way::Out {
                How::Read
            } else {
                How::Move
            };
            let source = match memory::is_address(from) {
                true => Some(accesses.at(from, self.bytes, how)?),
                false => None,
            };
            let target = match memory::is_address(to) {
                true => Some(accesses.at(to, self.bytes, How::Write)?),
                false => None,
            };
            // SAFETY: memory of devices was looked at above; that of the host is there, as the program has promised.
            unsafe {
                std::ptr::copy(from as *const u8, to as *mut u8, self.bytes as usize);
            }
            if let (Some(source), Some(target), Way::Across) = (&source, &target, way) {
                access::written_like(
                    (&target.allocation, to - target.allocation.start),
                    (&source.allocation, from - source.allocation.start),
                    self.bytes,
                );
            }
        }
        Ok(())
    }

    /// Reads the host's rows now, into memory that lives until they are copied.
    fn staged(self) -> (Self, Vec<u8>) {
        let mut bytes = Vec::with_capacity((self.bytes * self.count) as usize);
        for row in 0..self.count {
            let from = (self.from + row * self.from_pitch) as *const u8;
            // SAFETY: the program has promised that the rows are there.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(from, self.bytes as usize)
            });
        }
        let from = bytes.as_ptr() as u64;
        let rows = Rows {
            from,
            from_pitch: self.bytes,
            ..self
        };
        (rows, bytes)
    }
}

/// Checks that addresses are where the call says.
fn check(rows: Rows, way: Way) -> Result<(), Fault> {
    let wrong = |what: &str, address: u64| {
        Err(Fault::new(
            INVALID_VALUE,
            format!("{what} {address:#x}, which is no device's"),
        ))
    };
    if way != Way::In && !memory::is_address(rows.from) {
        return wrong("copies from", rows.from);
    }
    if way != Way::Out && !memory::is_address(rows.to) {
        return wrong("copies to", rows.to);
    }
    Ok(())
}

/// Copies rows in a stream. The host's memory that no call has locked is read before this returns, and written before
/// it does.
fn copy(name: &'static str, way: Way, rows: Rows, stream: Handle) -> Result<(), Fault> {
    current()?;
    if rows.bytes == 0 || rows.count == 0 {
        return Ok(());
    }
    check(rows, way)?;
    if way == Way::In && !is_locked(rows.from) {
        let (rows, bytes) = rows.staged();
        let work = Work::Run(Box::new(move |accesses| {
            let _lives = bytes;
            rows.run(way, accesses)
        }));
        return enqueue(name, stream, work);
    }
    let waits = way == Way::Out && !is_locked(rows.to);
    let work = Work::Run(Box::new(move |accesses| rows.run(way, accesses)));
    match waits {
        true => at_once(name, stream, work),
        false => enqueue(name, stream, work),
    }
}

/// Copies rows before it returns, in the null stream.
fn copy_at_once(name: &'static str, way: Way, rows: Rows) -> Result<(), Fault> {
    current()?;
    if rows.bytes == 0 || rows.count == 0 {
        return Ok(());
    }
    check(rows, way)?;
    let work = Work::Run(Box::new(move |accesses| rows.run(way, accesses)));
    at_once(name, 0, work)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> Status {
    call("cuMemcpyHtoD_v2", || {
        copy_at_once("cuMemcpyHtoD_v2", Way::In, Rows::one(to, from, bytes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> Status {
    call("cuMemcpyDtoH_v2", || {
        copy_at_once("cuMemcpyDtoH_v2", Way::Out, Rows::one(to, from, bytes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Status {
    call("cuMemcpyDtoD_v2", || {
        copy_at_once("cuMemcpyDtoD_v2", Way::Across, Rows::one(to, from, bytes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyHtoDAsync_v2", || {
        let rows = Rows::one(to, from, bytes);
        copy("cuMemcpyHtoDAsync_v2", Way::In, rows, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyDtoHAsync_v2", || {
        let rows = Rows::one(to, from, bytes);
        copy("cuMemcpyDtoHAsync_v2", Way::Out, rows, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> Status {
    call("cuMemcpyDtoDAsync_v2", || {
        let rows = Rows::one(to, from, bytes);
        copy("cuMemcpyDtoDAsync_v2", Way::Across, rows, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: Handle,
    from: u64,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    call("cuMemcpyPeerAsync", || {
        device_of(to_context)?;
        device_of(from_context)?;
        let rows = Rows::one(to, from, bytes);
        copy("cuMemcpyPeerAsync", Way::Across, rows, stream)
    })
}

/// `CUDA_MEMCPY2D_st`.
#[repr(C)]
struct Copy2D {
    from_x: usize,
    from_y: usize,
    from_type: c_uint,
    from_host: u64,
    from_device: u64,
    from_array: u64,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_uint,
    to_host: u64,
    to_device: u64,
    to_array: u64,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// `CU_MEMORYTYPE_HOST` and `_DEVICE`.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// # Safety
/// As NVIDIA's: the pointer is to a description, and the host's rows are there.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(description: *const Copy2D, stream: Handle) -> Status {
    call("cuMemcpy2DAsync_v2", || {
        // SAFETY: the caller's promise.
        let of = unsafe { description.as_ref() }.ok_or_else(|| Fault::from(INVALID_VALUE))?;
        let way = match (of.from_type, of.to_type) {
            (HOST, DEVICE) => Way::In,
            (DEVICE, HOST) => Way::Out,
            (DEVICE, DEVICE) => Way::Across,
            _ => return Err(Fault::new(INVALID_VALUE, "kinds of memory")),
        };
        let is_short = |pitch: usize| of.height > 1 && pitch < of.width;
        if is_short(of.from_pitch) || is_short(of.to_pitch) {
            return Err(Fault::new(
                INVALID_VALUE,
                "a pitch that is less than the width",
            ));
        }
        let start = |base: u64, x: usize, y: usize, pitch: usize| base + (y * pitch + x) as u64;
        let from = if way == Way::In {
            of.from_host
        } else {
            of.from_device
        };
        let to = if way == Way::Out {
            of.to_host
        } else {
            of.to_device
        };
        let rows = Rows {
            to: start(to, of.to_x, of.to_y, of.to_pitch),
            to_pitch: of.to_pitch as u64,
            from: start(from, of.from_x, of.from_y, of.from_pitch),
            from_pitch: of.from_pitch as u64,
            bytes: of.width as u64,
            count: of.height as u64,
        };
        copy("cuMemcpy2DAsync_v2", way, rows, stream)
    })
}
