//! The calls of NCCL and of CUDA's driver that are used: few enough that tests can simulate them.

use super::neighbours::Neighbours;
use crate::mesh::{BoolStore, DType};
use std::fmt;

/// An address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address(pub u64);

impl Address {
    /// Returns the address this many bytes further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A communicator of NCCL, as the library knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub usize);

/// A CUDA stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stream(pub usize);

/// A CUDA event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Event(pub usize);

/// What members of a communicator find each other by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    pub const BYTES: usize = 128;
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:02x?}..)", &self.0[..4])
    }
}

/// The result of a call, `ncclResult_t`: any number, because the library may be newer than this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub i32);

impl Code {
    pub const SUCCESS: Self = Self(0);
    /// The call goes on in the background.
    pub const IN_PROGRESS: Self = Self(7);

    /// Returns whether the call was accepted.
    pub fn is_accepted(self) -> bool {
        self == Self::SUCCESS || self == Self::IN_PROGRESS
    }
}

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub(crate) enum Element {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
}

impl Element {
    /// Returns what elements of `dtype` are to NCCL, which has no 16-bit integers, no `flex32` and no packed values.
    pub fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F64 => Self::F64,
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::I64 => Self::I64,
            DType::I32 => Self::I32,
            DType::I8 => Self::I8,
            DType::U64 => Self::U64,
            DType::U32 | DType::Bool(BoolStore::U32) => Self::U32,
            DType::U8 | DType::Bool(_) => Self::U8,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub(crate) enum Fold {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
}

/// One call within a group of calls. Counts are of elements, members are positions in the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// `count` of each member.
    AllGather {
        send: Address,
        recv: Address,
        count: usize,
    },
    Broadcast {
        send: Address,
        recv: Address,
        count: usize,
        root: usize,
    },
    AllReduce {
        send: Address,
        recv: Address,
        count: usize,
        fold: Fold,
    },
    /// `count` for each member.
    ReduceScatter {
        send: Address,
        recv: Address,
        count: usize,
        fold: Fold,
    },
    Reduce {
        send: Address,
        recv: Address,
        count: usize,
        fold: Fold,
        root: usize,
    },
    Send {
        send: Address,
        count: usize,
        to: usize,
    },
    Recv {
        recv: Address,
        count: usize,
        from: usize,
    },
}

impl Op {
    /// The name of NCCL's function.
    pub fn function(&self) -> &'static str {
        match self {
            Self::AllGather { .. } => "ncclAllGather",
            Self::Broadcast { .. } => "ncclBroadcast",
            Self::AllReduce { .. } => "ncclAllReduce",
            Self::ReduceScatter { .. } => "ncclReduceScatter",
            Self::Reduce { .. } => "ncclReduce",
            Self::Send { .. } => "ncclSend",
            Self::Recv { .. } => "ncclRecv",
        }
    }
}

/// NCCL. Communicators are non-blocking until they end, and each is used by one thread at a time.
pub(crate) trait Nccl: Send + Sync {
    /// The members of communicators that live in this process.
    fn neighbours(&self) -> &Neighbours;

    fn unique_id(&self) -> Result<UniqueId, Code>;

    /// Starts to join a communicator on the current device; it is there when its [`state`](Self::state) is success. An
    /// error that comes with a communicator is its state, and no error here.
    fn init(&self, members: usize, id: &UniqueId, member: usize) -> Result<Handle, Code>;

    /// What has become of the last call on a communicator.
    fn state(&self, comm: Handle) -> Code;

    fn group_start(&self) -> Code;

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

/// A GPU, as a rank uses it beside CubeCL. Errors are texts of the driver.
pub(crate) trait Gpu: Send + Sync {
    /// Makes the device the current one of this thread.
    fn attach(&self) -> Result<(), DeviceError>;

    fn stream(&self) -> Result<Stream, DeviceError>;

    /// Returns an event that is over when the stream has come past everything put on it before.
    fn record(&self, stream: Stream) -> Result<Event, DeviceError>;

    fn is_over(&self, event: Event) -> Result<bool, DeviceError>;

    fn forget(&self, event: Event);

    fn alloc(&self, bytes: usize) -> Result<Address, DeviceError>;

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
pub(crate) struct DeviceError {
    pub function: &'static str,
    pub reason: String,
}
