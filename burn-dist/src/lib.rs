//! Distributed N-D parallelism for [Burn](https://burn.dev), as a backend decorator.

// The derive names this crate by its outside path, also in the crate's own tests.
extern crate self as burn_dist;

pub mod comm;
pub mod layout;
pub mod mesh;
pub mod parallel;
pub mod plan;
pub mod record;
pub mod rules;
pub mod run;

#[doc(hidden)]
pub use parallel::private as __private;
pub use parallel::{DTensor, LocalParts, MeshBackend, Parallelize, ParallelizeWith, Plan, explain};
pub use plan::Checkpoint;
pub use record::{DeviceMesh, DeviceMeshBuilder, Dist, InputPolicy, MeshDevice, MeshReport};

/// The programs of the README, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
