//! The calls of NCCL and of CUDA's driver that are used: few enough that tests can simulate them.

use super::neighbours::Neighbours;
pub use super::op::{Element, Fold, Op};
pub use crate::device::{Address, DeviceError, Event, Gpu, Stream};
use std::fmt;

/// A communicator of NCCL, as the library knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// The id by which members of a communicator find each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    /// Its length.
    pub const BYTES: usize = 128;
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:02x?}..)", &self.0[..4])
    }
}

/// The result of a call, `ncclResult_t`: any number, because the library may be newer than this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    /// The call is done.
    pub const SUCCESS: Self = Self(0);
    /// The call goes on in the background.
    pub const IN_PROGRESS: Self = Self(7);

    /// Returns whether the call was accepted.
    pub fn is_accepted(self) -> bool {
        self == Self::SUCCESS || self == Self::IN_PROGRESS
    }
}

/// NCCL. Communicators are non-blocking until they end, and each is used by one thread at a time.
pub trait Nccl: Send + Sync {
    /// The members of communicators that live in this process.
    fn neighbours(&self) -> &Neighbours;

    /// Makes an id, by which members of a new communicator find each other.
    fn unique_id(&self) -> Result<UniqueId, Code>;

    /// Starts to join a communicator on the current device; it is there when its [`state`](Self::state) is success. An
    /// error that comes with a communicator is its state, and no error here.
    fn init(&self, members: usize, id: &UniqueId, member: usize) -> Result<Handle, Code>;

    /// The state of the last call on a communicator.
    fn state(&self, comm: Handle) -> Code;

    /// Starts a group of calls in this thread.
    fn group_start(&self) -> Code;

    /// Puts the calls of the group on their streams.
    fn group_end(&self) -> Code;

    /// Adds a call to the group that has been started.
    ///
    /// # Safety
    /// The memory that `op` reads and writes is there, and nobody else's, until `stream` has come past it, or the
    /// communicator is aborted and all members in this process have stopped.
    unsafe fn issue(&self, comm: Handle, op: &Op, element: Element, stream: Stream) -> Code;

    /// Starts to flush what has been issued; over when the [`state`](Self::state) is success.
    fn finalize(&self, comm: Handle) -> Code;

    /// Frees a communicator that was finalized. Blocks until its proxy thread has ended, which waits for peers.
    fn destroy(&self, comm: Handle) -> Code;

    /// Stops what runs on a communicator and frees it. Blocks until its streams have come past its kernels, and those
    /// before them.
    fn abort(&self, comm: Handle) -> Code;

    /// `ncclGetErrorString`.
    fn error_text(&self, code: Code) -> String;

    /// `ncclGetLastError`: details, or nothing.
    fn last_error(&self, comm: Handle) -> String;
}
