//! How a model says what is split over which mesh axis: `#[derive(Parallelize)]`, or a [`Plan`] of path patterns.
//!
//! Both give the same thing, a [`Plan`]; [`Plan::resolve`] turns it into one [`ParamSpec`] per float parameter, as
//! plain data, and [`parallelize`](crate::Parallelize::parallelize) installs each on its parameter: when the parameter
//! is initialised, and whenever it is loaded from a record. A plan never changes a value, only where it lies.
//!
//! | file | idea |
//! | --- | --- |
//! | `burn-dist-front/src/parallel/` | plans, what the derive writes into, and plan x tree x mesh -> specs |
//! | `plan` | the plans of Burn's current line |
//! | `describe` | a module that says how it is split |
//! | `walk` | the tree of any Burn module: its modules and float parameters |
//! | `apply` | installing specs on parameters |
//! | `dtensor`, `redistribute` | layouts of tensors, and moves |
//! | `pipeline` | a step in microbatches |
//!
//! One module for each parallelism names the files that do it: [`fsdp`], [`tensor`], [`sequence`], [`pipeline`],
//! [`context`], [`expert`].
//!
//! Not here: activations are placed by propagation, and what the policy of a spec asks for is done by the planner.

pub(crate) mod apply;
pub mod context;
pub(crate) mod describe;
pub(crate) mod dtensor;
pub mod expert;
pub mod fsdp;
pub mod pipeline;
pub(crate) mod plan;
mod redistribute;
pub mod sequence;
pub mod tensor;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use burn_dist_front::parallel::ModulePath;
pub use burn_dist_front::parallel::ParallelError;
pub use burn_dist_plan::{ParamRole, ParamSpec, Style};
pub use dtensor::DTensorError;
pub(crate) use dtensor::OnMesh;

use apply::ParallelizeWith;
use plan::Plan;

/// Names that the derive's expansion uses; not for users.
#[doc(hidden)]
pub mod private {
    pub use super::Style;
    pub use burn_dist_front::parallel::probe::{EachItem, EachNothing, Probe, ViaNothing, ViaPlan};
    // What the derive implements.
    pub use crate::mesh::ReduceOp;
    pub use burn_dist_front::parallel::{Blocks, Describe as Parallelize, Mark, Scope};
    pub use burn_dist_plan::layout::written::LayoutParts;
    pub use burn_dist_plan::policy;
}
