//! Memory of collectives: pooled buffers, outputs that several threads fill together, and the loops that fill them.
//!
//! All `unsafe` code of collectives between CPUs is here, but for calls of MPI ([`transport`](super::transport)). What
//! it rests on: every unit of work is claimed once (an atomic counter in [`work`]), every part of a [`Gathered`] output
//! is handed out once, and the units of one output write disjoint bytes that cover it (the law of
//! [`geometry`](super::geometry)).

mod gathered;
mod kernels;
#[cfg(feature = "tcp")]
mod neighbour;
mod pool;
mod stream;
mod work;

pub use gathered::{Gathered, Region};
pub(crate) use kernels::is_reducible;
#[cfg(feature = "tcp")]
pub(crate) use neighbour::copy_from;
pub use pool::{Pool, PoolBuffer, PoolMemory, Share};
pub(crate) use work::Work;

use crate::SharedBuffer;
use std::sync::Arc;

/// Where outputs are made.
#[derive(Clone)]
pub(crate) struct Memory {
    pub pool: Arc<Pool>,
    /// The output that has no bytes.
    pub empty: SharedBuffer,
}

impl Memory {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        // Aligned for every element type: backends look at an empty result as a slice of its elements.
        let empty = pool.copy_of(&[]);
        Self { pool, empty }
    }
}
