//! The collectives of NCCL, as data.

use crate::device::Address;
use burn_dist_mesh::{BoolStore, DType};

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
