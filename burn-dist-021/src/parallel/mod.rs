//! How a model says what is split over which mesh axis: `#[derive(Parallelize)]`, or a [`Plan`] of path patterns.
//!
//! Both give the same thing, a [`Plan`]; [`Plan::resolve`] turns it into one [`ParamSpec`] per float parameter, as
//! plain data, and [`parallelize`](crate::Parallelize::parallelize) installs each on its parameter: when the parameter
//! is initialised, and whenever it is loaded from a record. A plan never changes a value, only where it lies.
//!
//! | file | idea |
//! | --- | --- |
//! | `describe` | the trait the derive implements, and what it writes into |
//! | `plan`, `pattern` | entries and the paths they name |
//! | `walk` | the tree of any Burn module: its modules and float parameters |
//! | `resolve`, `fit` | plan x tree x mesh -> specs, and what a style means for a shape |
//! | `stages` | the stage of each parameter |
//! | `pipeline` | a step in microbatches |
//! | `apply` | installing specs on parameters |
//!
//! One module for each parallelism names the files that do it: [`fsdp`], [`tensor`], [`sequence`], [`pipeline`],
//! [`context`], [`expert`].
//!
//! Not here: activations are placed by propagation, and what the policy of a spec asks for is done by the planner.

pub(crate) mod apply;
pub mod context;
pub(crate) mod describe;
pub(crate) mod dtensor;
mod error;
pub mod expert;
mod fit;
pub mod fsdp;
mod pattern;
pub mod pipeline;
pub(crate) mod plan;
mod resolve;
pub mod sequence;
mod stages;
pub mod tensor;
#[cfg(test)]
mod tests;
mod walk;

pub use burn_dist_engine::Annotate;
pub use burn_dist_plan::{ParamRole, ParamSpec, Style};
pub use dtensor::DTensorError;
pub(crate) use dtensor::{MeshBackend, mesh_of};
pub use error::ParallelError;
pub(crate) use walk::ModulePath;

use apply::ParallelizeWith;
use burn_dist_plan::LayoutText;
use plan::Plan;

/// Names that the derive's expansion uses; not for users.
#[doc(hidden)]
pub mod private {
    pub use super::Style;
    pub use super::describe::probe::{EachItem, EachNothing, Probe, ViaNothing, ViaPlan};
    pub use super::describe::{Blocks, Mark, Parallelize, Scope};
    pub use crate::mesh::ReduceOp;
    pub use burn_dist_plan::layout::written::LayoutParts;
    pub use burn_dist_plan::policy;
}
