//! The calls of CUDA's driver that order streams with each other: few enough that tests can simulate them.

use crate::device::{Address, DeviceError, Event, Stream};
use std::any::Any;
use std::sync::atomic::AtomicU32;

/// Keeps memory from being released, and from nothing else.
pub type Hold = Box<dyn Any + Send>;

/// Words that the host and the device both read and write.
///
/// A page of the system's memory. It is never released: a kernel that nothing stops may read it as long as the
/// process lives.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Where the device finds them, one after the other.
    pub address: Address,
    /// The same, for the host.
    pub host: &'static [AtomicU32],
}

impl Words {
    /// Where the device finds a word.
    pub fn at(&self, index: usize) -> Address {
        assert!(index < self.host.len(), "word {index} of a page");
        self.address.plus(index * size_of::<AtomicU32>())
    }
}

/// A wait of a backend's stream: it goes on when the word is at `value` or past it, or when `poison` is not
/// 0.
///
/// Numbers wrap around: `value` is past what is less than 2^31 behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlagWait {
    /// The word.
    pub word: Address,
    /// The value that ends the wait.
    pub value: u32,
    /// The word that ends all waits.
    pub poison: Address,
}

impl FlagWait {
    /// Returns whether a word that reads `found` has come to `value`.
    pub fn has_come(found: u32, value: u32) -> bool {
        found.wrapping_sub(value).cast_signed() >= 0
    }
}

/// How a rank orders streams of its GPU beyond [`Gpu`](crate::device::Gpu). Errors are texts of the driver.
pub trait Signals: Send + Sync {
    /// Returns a page of words, all 0.
    fn words(&self) -> Result<Words, DeviceError>;

    /// Returns an event that is over when everything has run that any stream of the device's context was handed before:
    /// a backend's streams too, which nobody else knows.
    fn record_all(&self) -> Result<Event, DeviceError>;

    /// Makes a stream write a word, after all that it was handed before: whoever sees the word sees that too.
    fn write(&self, stream: Stream, word: Address, value: u32) -> Result<(), DeviceError>;
}
