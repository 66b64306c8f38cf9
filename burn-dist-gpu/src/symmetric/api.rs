//! The calls of CUDA's driver by which processes share memory.

use super::os::{Descriptor, Page};
use crate::device::{Address, DeviceError, Stream};

/// Device memory that can be mapped by several processes, where this one has mapped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where this process's GPU finds it.
    pub address: Address,
    /// How much it is.
    pub bytes: usize,
}

/// How a rank shares memory with processes of its machine. Errors are texts of the driver.
pub trait Symmetric: Send + Sync {
    /// Makes memory of this GPU, at least so much, and returns by what other processes map it.
    fn create(&self, bytes: usize) -> Result<(Mapping, Descriptor), DeviceError>;

    /// Maps memory that a rank has [made](Self::create), in whichever process.
    fn import(&self, descriptor: &Descriptor, bytes: usize) -> Result<Mapping, DeviceError>;

    /// Ends a mapping of this process. The memory is released when no process maps it any more.
    ///
    /// # Safety
    /// No stream of this process uses it, or will.
    unsafe fn unmap(&self, mapping: Mapping);

    /// Makes host memory known to the device, and returns where the device finds it.
    fn register(&self, page: &Page) -> Result<Address, DeviceError>;

    /// Takes back a registration.
    ///
    /// # Safety
    /// As [`unmap`](Self::unmap).
    unsafe fn unregister(&self, page: &Page);

    /// Makes a stream wait until a word has [come to](crate::streams::api::FlagWait::has_come) `value`. Whoever sees
    /// the word sees what was written before it, by whichever device.
    fn wait_for(&self, stream: Stream, word: Address, value: u32) -> Result<(), DeviceError>;
}
