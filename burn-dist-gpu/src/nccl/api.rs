//! The calls of NCCL and of CUDA's driver that are used: few enough that tests can simulate them.

use super::neighbours::Neighbours;
use burn_dist_mesh::{BoolStore, DType};
use std::fmt;

/// An address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address this many bytes further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A communicator of NCCL, as the library knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// A CUDA stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// A CUDA event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub usize);

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

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Element {
    /// An 8-bit integer with a sign.
    I8 = 0,
    /// An 8-bit integer without a sign.
    U8 = 1,
    /// A 32-bit integer with a sign.
    I32 = 2,
    /// A 32-bit integer without a sign.
    U32 = 3,
    /// A 64-bit integer with a sign.
    I64 = 4,
    /// A 64-bit integer without a sign.
    U64 = 5,
    /// A 16-bit float.
    F16 = 6,
    /// A 32-bit float.
    F32 = 7,
    /// A 64-bit float.
    F64 = 8,
    /// A 16-bit brain float.
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

    /// Returns the size of an element.
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
pub enum Fold {
    /// Adds.
    Sum = 0,
    /// Multiplies.
    Prod = 1,
    /// Keeps the largest.
    Max = 2,
    /// Keeps the smallest.
    Min = 3,
    /// Adds, and divides by the number of members.
    Avg = 4,
}

/// One call within a group of calls. Counts are of elements, members are positions in the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Every member gets `count` elements of each.
    AllGather {
        /// Where elements are read.
        send: Address,
        /// Where elements are written.
        recv: Address,
        /// How many.
        count: usize,
    },
    /// Every member gets the root's elements.
    Broadcast {
        /// Where elements are read.
        send: Address,
        /// Where elements are written.
        recv: Address,
        /// How many.
        count: usize,
        /// The member that has, or gets, the result.
        root: usize,
    },
    /// Every member gets the reduction of all elements.
    AllReduce {
        /// Where elements are read.
        send: Address,
        /// Where elements are written.
        recv: Address,
        /// How many.
        count: usize,
        /// How elements combine.
        fold: Fold,
    },
    /// Every member gets the reduction of its `count` elements.
    ReduceScatter {
        /// Where elements are read.
        send: Address,
        /// Where elements are written.
        recv: Address,
        /// How many.
        count: usize,
        /// How elements combine.
        fold: Fold,
    },
    /// The root gets the reduction of all elements.
    Reduce {
        /// Where elements are read.
        send: Address,
        /// Where elements are written.
        recv: Address,
        /// How many.
        count: usize,
        /// How elements combine.
        fold: Fold,
        /// The member that has, or gets, the result.
        root: usize,
    },
    /// One member gives elements to another.
    Send {
        /// Where elements are read.
        send: Address,
        /// How many.
        count: usize,
        /// The rank that gets them.
        to: usize,
    },
    /// One member gets elements of another.
    Recv {
        /// Where elements are written.
        recv: Address,
        /// How many.
        count: usize,
        /// The rank that gives them.
        from: usize,
    },
}

impl Op {
    /// Returns whether it only moves elements: whether a copy can do it.
    pub fn is_move(&self) -> bool {
        match self {
            Self::AllGather { .. }
            | Self::Broadcast { .. }
            | Self::Send { .. }
            | Self::Recv { .. } => true,
            Self::AllReduce { .. } | Self::ReduceScatter { .. } | Self::Reduce { .. } => false,
        }
    }

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
