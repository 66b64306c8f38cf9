//! Memory of collectives: pooled buffers, outputs that several threads fill together, and the loops that fill them.
//!
//! All `unsafe` code of this folder is here. What it rests on: every unit of work is claimed once (an atomic counter in [`work`]), and the
//! units of one output write disjoint bytes that cover it (the law of [`geometry`](super::geometry)).

mod kernels;
mod pool;
mod stream;
mod work;

pub(crate) use kernels::is_reducible;
pub(crate) use pool::{Buffer, Pool};
pub(crate) use work::Work;
