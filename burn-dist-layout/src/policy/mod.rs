//! How to train on a mesh: what users choose, each with a text form. The fronts show all that is public here.
//!
//! A [`Policy`](crate::Policy) holds all of it, resolved for one unit; it travels with the parameters. A [`UnitPolicy`]
//! is what a user says of a model or of a unit. A policy changes speed and memory; of the values, only [`Precision`] and
//! [`Float8`] change any.

mod accumulation;
mod async_tp;
mod checkpoint;
mod context;
mod float8;
mod offload;
mod precision;
mod regions;
mod reshard;
mod strategy;
pub(crate) mod unit;

pub use accumulation::Accumulation;
pub use async_tp::AsyncTp;
pub use checkpoint::ActivationCheckpoint;
pub use context::ContextParallel;
pub use float8::{Float8, Fp8, Scaling, Scope};
pub use offload::Offload;
pub use precision::{Float, Precision};
pub use regions::Regions;
pub use reshard::Reshard;
pub use strategy::ShardStrategy;
pub use unit::UnitPolicy;
