//! From one layout of a tensor to another: steps as data, their costs, and the cheapest sequence of them.
//!
//! [`plan`] returns [`Step`]s; each describes one collective or one local operation completely, by the layouts before
//! and after it. Nothing here moves any data; for tests, `simulate.rs` does, on plain vectors, and is the
//! reference for whoever executes steps for real.
//!
//! | step | before -> after, over an axis of size k | received per rank |
//! | --- | --- | --- |
//! | all_gather | `{x}` -> `-` | (k-1)/k of the result |
//! | reduce_scatter | `sum{x}` -> `{x}` | (k-1)/k of the source |
//! | all_reduce | `sum{x}` -> resolved | 2(k-1)/k of the value |
//! | all_to_all | `[{x}, -]` -> `[-, {x}]`; of several axes that stay together too | (k-1)/k of the block |
//! | slice, to_partial, refactor | `-` -> `{x}`, `-` -> `sum{x}`, `[12{x}]` -> `[(4{x} . 3)]` | nothing |
//!
//! Left out on purpose: point-to-point moves between sub-meshes (pipeline stages), and the choice of an algorithm for a
//! collective.

mod cost;
mod direct;
mod geometry;
#[cfg(test)]
mod laws;
mod plan;
mod search;
#[cfg(test)]
mod simulate;
mod step;

pub use geometry::{Geometry, Pieces};
pub use plan::{cost, plan};
pub use step::{Effect, Step, StepKind};
