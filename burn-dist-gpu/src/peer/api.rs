//! The calls of CUDA's driver by which a GPU reads another one's memory.

use crate::device::{Address, DeviceError, Stream};

/// The UUID of a GPU, which distinguishes the GPUs of all machines.
pub type Identity = [u8; 16];

/// How a rank copies from other GPUs of its process. Errors are texts of the driver.
pub trait Copies: Send + Sync {
    /// The GPU's identity.
    fn identity(&self) -> Identity;

    /// The GPUs whose memory this one reads, where a backend allocates it, by their identities.
    fn reachable(&self) -> Vec<Identity>;

    /// Puts a copy on a stream, from memory of this GPU or of one that it [reaches](Self::reachable).
    ///
    /// # Safety
    /// Until the stream has come past it, `from` is there and nobody writes it, and `to` is there and nobody else uses
    /// it.
    unsafe fn copy(
        &self,
        stream: Stream,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DeviceError>;
}
