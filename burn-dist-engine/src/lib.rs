//! The engine of [burn-dist](https://docs.rs/burn-dist): what records programs and runs them on Burn's backends. It
//! names nothing of Burn's tensors, modules or optimizers.
//!
//! `Dist<B>` records a program of Burn's backend ([`record`]; operations in [`ops`]), the planner partitions it
//! ([`plan`]), and each rank's part runs on the inner backend `B` ([`run`]). Users have it through `burn_dist`; a crate
//! that Burn itself is built on may depend on it.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod annotate;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[cfg_attr(burn_021, path = "backend_021.rs")]
pub mod backend;
mod burn;
pub mod custom;
mod options;
pub mod record;
pub mod run;
pub mod warn;

pub use annotate::Annotate;
pub use burn_dist_ops::{self as ops, plan};
pub use options::InputPolicy;
pub use record::{DeviceMesh, DeviceMeshBuilder, Dist, Hold, MeshDevice, MeshReport};

use burn_dist_comm as comm;
use burn_dist_comm::flight;
use burn_dist_launch as launch;
use burn_dist_mesh as mesh;
use burn_dist_plan::{clock, layout};
