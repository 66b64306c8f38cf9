//! What burn-dist decides before anything runs, as plain data.
//!
//! | module | idea |
//! | --- | --- |
//! | [`layout`] | who holds which part of a tensor, and the way from one answer to another |
//! | [`policy`] | how to train on a mesh: what users choose |
//! | [`rule`] | what of an operation may be split, and what that leaves |
//! | [`op`] | the operations of a recorded program, as the planner knows them |
//! | [`region`] | elementwise work as small programs over rows |
//! | [`param`] | what is known of a parameter |
//! | [`stage`] | the parts of a model along a pipeline axis |
//! | [`Facts`] | what the values and operations of a window are to training |
//! | [`cost`] | how long moves and operations take, in nanoseconds |
//! | [`pipeline`] | schedules of pipeline stages: what each rank does when |
//! | [`clock`] | how long a plan takes on modelled hardware |
//!
//! | feature | effect |
//! | --- | --- |
//! | `text-form` | module `form`: all that passes share as a text that can be read again, for tests |
//!
//! # The planner
//!
//! Files use what is above them in this list, and nothing below.
//!
//! ```text
//! rule/, pipeline/, memory.rs, storage.rs, pool.rs; layouts, policies and costs are those of `burn-dist-layout`
//! ir/           window: recorded operations in canonical form; program: the steps of all ranks; tasks of a rank
//! facts/        what values and operations are to training, the stages of a pipeline, visits to units, data flow
//! account.rs    the bytes of a rank, buffer by buffer
//! passes/       in one list, passes.rs:
//!   precision     16-bit types where units ask for them                   window -> window
//!   float8        linear layers in 8 bits where units ask for them        window -> window
//!   propagate     a layout for every value, redistributions inserted      window -> program
//!   checkpoint    activations made again in the backward                  program -> program
//!   redundancy    counts the work, and what of it ranks repeat            reads the program
//!   staging       a program for each stage of a pipeline; microbatches    program -> programs
//!                 repeated, for the clock
//!   schedule      gathers and reductions of a unit together, early        program -> program
//!   hierarchy     stages of collectives over several nodes                program -> program
//!   async_tp      products in chunks beside transfers                     program -> program
//!   lower         local shapes and operations, pieces of collectives      program -> tasks
//!   regions       elementwise work as few kernels                         tasks -> tasks
//!   offload       moves to the host and back                              tasks -> tasks
//!   lifetimes     last uses                                               tasks -> tasks
//! plan.rs       tasks per rank, collectives with reasons, what each pass has done
//! planner.rs    window -> plan; text.rs, why.rs, explain.rs, clock/: a plan for people, and on modelled hardware
//! ```
//!
//! Nothing here knows a backend, a thread, a clock or the environment.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod account;
pub mod cache;
pub mod clock;
mod error;
pub mod explain;
mod facts;
#[cfg(any(test, feature = "text-form"))]
pub mod form;
pub mod fuzz;
mod ir;
pub mod memory;
mod options;
mod passes;
pub mod pattern;
pub mod pipeline;
mod plan;
mod planner;
mod pool;
pub mod rule;
pub mod storage;
#[cfg(test)]
mod tests;
mod text;
#[cfg(test)]
mod toy;
mod why;

pub use burn_dist_layout as layout;
use burn_dist_layout::bytes;
pub use burn_dist_layout::{cost, policy};
use burn_dist_mesh as mesh;

pub use error::PlanError;
pub use facts::Facts;
pub use ir::{
    ParamRole, ParamSpec, Phase, Pipeline, Role, ScheduleChoice, Stage, Style, flops, op, param,
    region, stage, window,
};
pub use layout::{LayoutText, Policy, runs};
pub use options::{Draws, PlanOptions, RegionKernels};
pub use passes::redundancy::{AxisRedundancy, FewRows, Redundancy};
pub use passes::regions::Fused;
pub use passes::{PASSES, pass_index};
pub use pipeline::ScheduleKind;
pub use planner::{plan, text_after};
pub use policy::*;
pub use storage::Storage;
pub use why::{AskedValue, why};

/// Linear layers in 8 bits: their operations, and what became of each layer.
pub mod float8 {
    pub use crate::ir::float8::{BLOCK, Float8Op, Float8Store, Product, ScaleOf, Ways};
    pub use crate::passes::float8::Float8Layer;
}

/// Plans of windows: what every rank does.
pub mod task {
    pub use crate::ir::task::{
        CollectiveRecord, CollectiveTask, HostTask, Output, RandomTask, RankPlan, ReadPlan,
        RegionInput, RegionTask, Task, TermOf, TransferTask, UploadTask,
    };
    pub use crate::ir::tensor::Slot;
    pub use crate::passes::regions::region_of;
    pub use crate::plan::Plan;
}
