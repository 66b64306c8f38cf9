//! Memory that is filled.

use super::{Handle, at_once, call, enqueue};
use crate::access::How;
use crate::fault::Fault;
use crate::queue::Work;
use crate::status::{INVALID_VALUE, Status};
use std::ffi::{c_uchar, c_uint};

/// Fills memory with a value, again and again.
fn fill<T: Copy + Send + 'static>(to: u64, value: T, count: usize) -> Result<Work, Fault> {
    if !to.is_multiple_of(size_of::<T>() as u64) {
        return Err(Fault::new(INVALID_VALUE, format!("{to:#x} is not aligned")));
    }
    Ok(Work::Run(Box::new(move |accesses| {
        if count == 0 {
            return Ok(());
        }
        accesses.at(to, (count * size_of::<T>()) as u64, How::Write)?;
        // SAFETY: the memory was looked at above, and is aligned.
        unsafe { std::slice::from_raw_parts_mut(to as *mut T, count) }.fill(value);
        Ok(())
    })))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: Handle) -> Status {
    call("cuMemsetD8Async", || {
        enqueue("cuMemsetD8Async", stream, fill(to, value, count)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) -> Status {
    call("cuMemsetD32Async", || {
        enqueue("cuMemsetD32Async", stream, fill(to, value, count)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) -> Status {
    call("cuMemsetD8_v2", || {
        at_once("cuMemsetD8_v2", 0, fill(to, value, count)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) -> Status {
    call("cuMemsetD32_v2", || {
        at_once("cuMemsetD32_v2", 0, fill(to, value, count)?)
    })
}
