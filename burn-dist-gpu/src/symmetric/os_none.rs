//! Systems that hand no descriptors to each other's processes, as far as is known here.

use std::convert::Infallible;
use std::ffi::c_void;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// There is none.
pub type Descriptor = Infallible;

/// The id of the machines whose processes can hand descriptors to each other.
pub type MachineId = [u8; 16];

fn unsupported() -> Error {
    let reason = "processes share memory of GPUs on Linux only";
    Error::new(ErrorKind::Unsupported, reason)
}

/// # Errors
/// Always.
pub fn machine() -> Result<MachineId> {
    Err(unsupported())
}

/// # Errors
/// Always.
pub fn memory(_: usize) -> Result<Descriptor> {
    Err(unsupported())
}

/// There is none.
#[derive(Clone, Debug)]
pub struct Page(Arc<Infallible>);

impl Page {
    /// # Errors
    /// There is no descriptor to call this with.
    pub fn map(memory: &Descriptor, _: usize) -> Result<Self> {
        match *memory {}
    }

    /// Where it is.
    pub fn start(&self) -> *mut c_void {
        match *self.0 {}
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        match *self.0 {}
    }

    /// The name that distinguishes it from all others.
    pub fn number(&self) -> u64 {
        match *self.0 {}
    }

    /// Its content as words.
    pub fn words(&self) -> &[AtomicU32] {
        match *self.0 {}
    }
}

/// The bytes that are sent beside descriptors.
pub const NOTE: usize = 16;

/// A message: some bytes, and descriptors.
pub type Received = ([u8; NOTE], Vec<Descriptor>);

/// There is none.
pub struct Mailbox(Infallible);

impl Mailbox {
    /// # Errors
    /// Always.
    pub fn open(_: &[u8; 16]) -> Result<Self> {
        Err(unsupported())
    }

    /// # Errors
    /// There is no mailbox to call this on.
    pub fn receive(&self) -> Result<Option<Received>> {
        match self.0 {}
    }
}

/// # Errors
/// Always.
pub fn send(_: &[u8; 16], _: &[u8; NOTE], _: &[&Descriptor]) -> Result<bool> {
    Err(unsupported())
}
