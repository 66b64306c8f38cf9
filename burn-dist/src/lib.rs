//! Distributed N-D parallelism for [Burn](https://burn.dev), as a backend decorator.

// The derive names this crate by its outside path, also in the crate's own tests.
extern crate self as burn_dist;

pub mod comm;
pub mod layout;
pub mod mesh;
pub mod optim;
pub mod parallel;
pub mod plan;
pub mod record;
pub mod rules;
pub mod run;

#[doc(hidden)]
pub use parallel::private as __private;
pub use parallel::{DTensor, LocalParts, MeshBackend, Parallelize, ParallelizeWith, Plan, explain};
pub use plan::{Accumulation, Checkpoint, Float, Precision, Reshard, ShardStrategy};
pub use record::{DeviceMesh, DeviceMeshBuilder, Dist, InputPolicy, MeshDevice, MeshReport};

/// Inner backends beside `burn_flex::Flex`, by feature. `Dist<B>` takes any `B: BackendIr`; these are here so that a program need not name another crate.
///
/// They are the types that `burn::backend` gives under the same names: burn-fusion around CubeCL.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub mod backend {
    #[cfg(feature = "cuda")]
    pub use burn_cuda::{Cuda, CudaDevice};
    #[cfg(feature = "wgpu")]
    pub use burn_wgpu::{Wgpu, WgpuDevice};
}

/// The programs of the README, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
