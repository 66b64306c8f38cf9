//! What burn-dist decides before anything runs, as plain data.
//!
//! | module | idea |
//! | --- | --- |
//! | [`layout`] | who holds which part of a tensor, and the way from one answer to another |
//! | [`policy`] | how to train on a mesh: what users choose |
//! | [`rule`] | what of an operation may be split, and what that leaves |
//! | [`op`] | the operations of a recorded program, as the planner knows them |
//! | [`param`] | what is known of a parameter |
//! | [`stage`] | the parts of a model along a pipeline axis |
//! | [`facts`] | what the values and operations of a window are to training |
//! | [`cost`] | how long moves and operations take, in nanoseconds |
//! | [`pipeline`] | schedules of pipeline stages: what each rank does when |
//! | [`clock`] | how long a plan takes on modelled hardware |
//!
//! # The planner
//!
//! ```text
//! window      recorded operations in canonical form                     window.rs
//!   facts       what values and operations are to training                facts.rs
//! passes      in one list                                               passes.rs
//!   precision   16-bit types where units ask for them                     precision/
//!   float8      linear layers in 8 bits where units ask for them          float8/
//!   propagate   a layout for every value, redistributions inserted        propagate/
//!   checkpoint  activations made again in the backward                    checkpoint/
//!   redundancy  counts the work, and what of it ranks repeat              redundancy.rs, flops.rs
//!   staging     a program for each stage of a pipeline; microbatches      staging.rs, facts/stages.rs, repeat.rs
//!               repeated, for the clock
//!   schedule    gathers and reductions of a unit together, ahead of use   schedule.rs, units.rs
//!   hierarchy   stages of collectives over several nodes                  hierarchy.rs
//!   lower       local shapes, local operations, pieces of collectives     lower.rs, unneeded.rs
//!   offload     moves to the host and back                                offload.rs
//!   lifetimes   last uses; bytes of a rank, buffer by buffer              lifetimes.rs, account.rs, storage.rs, memory.rs
//! plan        tasks per rank, collectives with reasons                  task.rs, explain.rs
//! ```
//!
//! Nothing here knows a backend, a thread, a clock or the environment.

#![forbid(unsafe_code)]

pub mod account;
mod async_tp;
pub mod cache;
pub mod checkpoint;
pub mod clock;
pub mod cost;
mod error;
pub mod explain;
pub mod facts;
pub mod float8;
pub mod flops;
pub mod fuzz;
mod hierarchy;
pub mod layout;
mod lifetimes;
mod lower;
pub mod memory;
mod offload;
pub mod op;
mod options;
pub mod param;
mod passes;
pub mod pipeline;
mod planner;
pub mod policy;
mod precision;
mod propagate;
mod redundancy;
mod rename;
mod repeat;
pub mod rule;
mod schedule;
pub mod stage;
mod staging;
pub mod storage;
pub mod task;
#[cfg(test)]
mod tests;
mod text;
#[cfg(test)]
mod toy;
mod units;
mod unneeded;
pub mod window;

use burn_dist_mesh as mesh;

pub use error::PlanError;
pub use facts::{Facts, Phase, Role};
pub use layout::LayoutText;
pub use lower::runs;
pub use options::PlanOptions;
pub use param::{ParamRole, ParamSpec, Style};
pub use passes::PASSES;
pub use pipeline::ScheduleKind;
pub use planner::{plan, text_after};
pub use policy::{
    Accumulation, ActivationCheckpoint, AsyncTp, ContextParallel, Float, Float8, Fp8, Offload,
    Policy, Precision, Reshard, Scaling, Scope, ShardStrategy, UnitPolicy,
};
pub use redundancy::{AxisRedundancy, FewRows, Redundancy};
pub use stage::{Pipeline, ScheduleChoice, Stage};
pub use storage::Storage;
