//! How a model says what is split over which mesh axis: `#[derive(Parallelize)]`, or a [`Plan`] of path patterns.
//!
//! Both give the same thing, a [`Plan`]; [`Plan::resolve`] turns it into one [`ParamSpec`] per float parameter, as
//! plain data, and [`Parallelize::parallelize`] installs each on its parameter: when the parameter is initialised, and
//! whenever it is loaded from a record. A plan never changes a value, only where it lies.
//!
//! | file | idea |
//! | --- | --- |
//! | `describe` | the trait the derive implements, and what it writes into |
//! | `plan`, `pattern` | entries and the paths they name |
//! | `walk` | the float parameters of any Burn module, with their paths |
//! | `resolve`, `fit` | plan x parameters x mesh -> specs, and what a style means for a shape |
//! | `stages` | the stage of each parameter |
//! | `pipeline` | a step in microbatches |
//! | `apply` | installing specs on parameters |
//!
//! Not here: activations are placed by propagation, and what the policy of a spec asks for is done by the planner.

mod apply;
mod describe;
mod dtensor;
mod error;
mod fit;
mod pattern;
pub mod pipeline;
mod plan;
mod resolve;
mod stages;
#[cfg(test)]
mod tests;
mod walk;

pub use apply::ParallelizeWith;
pub use burn_dist_engine::Annotate;
#[doc = include_str!("derive.md")]
pub use burn_dist_macros::Parallelize;
pub use burn_dist_plan::{LayoutText, ParamRole, ParamSpec, Style};
pub use describe::Parallelize;
pub(crate) use dtensor::mesh_of;
pub use dtensor::{
    DTensor, DTensorError, LocalParts, MeshBackend, ProcessLocal, explain, explain_after, simulate,
};
pub use error::ParallelError;
pub use plan::Plan;
pub(crate) use walk::Place;

/// What the derive's expansion names; not for users.
#[doc(hidden)]
pub mod private {
    pub use super::Style;
    pub use super::describe::probe::{EachItem, EachNothing, Probe, ViaNothing, ViaPlan};
    pub use super::describe::{Blocks, Mark, Parallelize, Scope};
}
