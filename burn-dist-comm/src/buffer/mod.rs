//! Memory of collectives: pooled buffers, outputs that several threads fill together, and the loops that fill them.
//!
//! All `unsafe` code of the transports between CPUs is here, but for what receives bytes from other processes
//! ([`processes`](super::processes)). What it rests on: every unit of work is claimed once (an atomic counter in
//! [`work`]), and the units of one output write disjoint bytes that cover it (the law of
//! [`geometry`](super::geometry)).

mod kernels;
mod pool;
mod stream;
mod work;

pub(crate) use kernels::is_reducible;
pub use pool::{Pool, PoolBuffer, PoolMemory, Share};
pub(crate) use work::Work;
