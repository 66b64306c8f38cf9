//! Steps of f32 that run together, block by block: each value of a block is read again while it is in the first cache,
//! and the processor computes quotients of one block beside the sums of the next.
//!
//! Two functions, of which only the second reads the first, are one loop. Both are rounded, so that nothing changes but
//! the memory in between.

pub(super) mod code;
mod loops;
pub(super) mod maker;
mod run;
pub(super) mod scratch;
