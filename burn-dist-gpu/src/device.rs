//! A GPU: memory, streams and events, by the few calls of CUDA's driver that all of this crate uses.

/// An address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address this many bytes further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A CUDA stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// A CUDA event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub usize);

/// A GPU, as a rank uses it beside CubeCL. Errors are texts of the driver.
pub trait Gpu: Send + Sync {
    /// Makes the device the current one of this thread.
    fn attach(&self) -> Result<(), DeviceError>;

    /// Makes a stream.
    fn stream(&self) -> Result<Stream, DeviceError>;

    /// Returns an event that is over when the stream has come past everything put on it before.
    fn record(&self, stream: Stream) -> Result<Event, DeviceError>;

    /// Returns whether the stream has come past an event.
    fn is_over(&self, event: Event) -> Result<bool, DeviceError>;

    /// Makes a stream wait for an event, which may be of another GPU of this process.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;

    /// Frees an event; streams that wait for it go on waiting.
    fn forget(&self, event: Event);

    /// Allocates memory on the device.
    fn alloc(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Frees memory.
    ///
    /// # Safety
    /// `memory` was allocated here, is not in use, and is not used afterwards.
    unsafe fn free(&self, memory: Address);

    /// Copies to the device, and waits until it is there.
    ///
    /// # Safety
    /// `to` has room for `bytes` within one allocation, and nobody else uses it meanwhile.
    unsafe fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the device, and waits until it is there.
    ///
    /// # Safety
    /// As [`upload`](Self::upload).
    unsafe fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError>;
}

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// Its name.
    pub function: &'static str,
    /// The words of the driver.
    pub reason: String,
}

impl DeviceError {
    /// Returns what an error of the operating system is that a function has met.
    pub(crate) fn of_system(function: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| Self {
            function,
            reason: error.to_string(),
        }
    }
}
