//! Results of calls: `ncclResult_t`.

/// A result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) i32);

pub(crate) const SUCCESS: Status = Status(0);
pub(crate) const UNHANDLED_CUDA: Status = Status(1);
pub(crate) const SYSTEM: Status = Status(2);
pub(crate) const INTERNAL: Status = Status(3);
pub(crate) const INVALID_ARGUMENT: Status = Status(4);
pub(crate) const INVALID_USAGE: Status = Status(5);
pub(crate) const IN_PROGRESS: Status = Status(7);
