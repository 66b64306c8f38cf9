//! How to train on a mesh: what users choose, each with a text form.
//!
//! A policy changes speed and memory; of the values, only [`Precision`] changes any.

mod accumulation;
mod checkpoint;
mod offload;
mod precision;
mod reshard;
mod strategy;

pub use accumulation::Accumulation;
pub use checkpoint::Checkpoint;
pub use offload::Offload;
pub use precision::{Float, Precision};
pub use reshard::Reshard;
pub use strategy::ShardStrategy;
