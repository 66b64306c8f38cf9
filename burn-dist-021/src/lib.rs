//! Distributed N-D parallelism for [Burn](https://burn.dev), as a backend decorator.
//!
//! [`Dist<B>`](Dist) records a Burn program, partitions it over a [`DeviceMesh`] as plain data, and runs each rank's
//! part on the inner backend `B`. What of a model is split, [`Parallelize`](trait@Parallelize) or a [`Plan`] says;
//! [`explain()`] tells what that costs before anything runs, [`simulate`] how long it takes on modelled hardware. A
//! [`data::Loader`] hands out batches, and goes on where another run was left. The README of the repository is the
//! guide.
//!
//! | feature | brings | needed to build | needed to run |
//! | --- | --- | --- | --- |
//! | none | ranks as threads of one process, on `burn_flex::Flex` (CPU) | | |
//! | `wgpu` | `burn_dist::backend::Wgpu`: GPUs through Vulkan, Metal, DX12 or WebGPU | | a driver for one of them |
//! | `cuda` | `burn_dist::backend::Cuda`: NVIDIA GPUs, and NCCL between them | | NVIDIA's driver and the CUDA toolkit; NCCL 2.18 where each rank has a GPU of its own |
//! | `mpi` | several processes over MPI | an MPI library and libclang | the same MPI library and its `mpirun` |
//! | `cli` | the program `burn-dist`: a launcher, and a doctor for runs that failed (Unix) | | `mpirun`, unless it starts processes directly |
//! | `train` | `burn_dist::train`: the run around a training loop: configuration, metrics, texts as rows of tokens | | |
//! | `parquet` | texts from Parquet files in `burn_dist::train::corpus`; turns on `train` | | |
//! | `tokenizers` | texts as token ids: `burn_dist::train::tokenizer`; turns on `train` | | |
//! | `tcp` | several processes over TCP; comes with `cuda` and `mpi` | | |
//!
//! Burn is 0.21.0 exactly, Rust 1.95 or later.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

// The derive names this crate by its outside path, also in the crate's own tests.
extern crate self as burn_dist;

pub mod checkpoint;
pub mod data;
pub mod nn;
pub mod optim;
pub mod parallel;
mod surface;
#[cfg(feature = "train")]
pub mod train;

/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::Tensor;
/// use burn_dist::{DeviceMesh, Dist};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let x = Tensor::<Dist<Flex>, 2>::ones([4, 3], &mesh.device());
/// assert_eq!(x.sum().into_scalar(), 12.0);
/// # Ok::<(), burn_dist::mesh::MeshError>(())
/// ```
#[doc(inline)]
pub use burn_dist_engine::Dist;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub use burn_dist_engine::backend;
pub use burn_dist_engine::custom;
#[doc(inline)]
pub use burn_dist_engine::run::Fault;
#[doc(inline)]
pub use burn_dist_engine::{DeviceMesh, DeviceMeshBuilder, Hold, InputPolicy, MeshDevice};
#[doc = include_str!("parallel/derive.md")]
pub use burn_dist_macros::Parallelize021 as Parallelize;
#[doc(inline)]
pub use burn_dist_plan::clock;
#[doc(inline)]
pub use burn_dist_plan::policy::*;
#[doc(hidden)]
pub use parallel::private as __private;
#[doc(inline)]
pub use parallel::{
    apply::ParallelizeWith,
    describe::Parallelize,
    dtensor::{
        DTensor, LocalParts, MeshBackend, ProcessLocal, explain, explain_after, explain_why,
        simulate,
    },
    plan::Plan,
};
pub use surface::{explanation, launch, layout, mesh, report, schedule};

use burn_dist_engine::{ops, record, run};
use burn_dist_plan as plan;

/// The programs of the guide for Burn 0.21, as doctests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../docs/guide/burn-021.md")]
    struct Burn021;
}

#[cfg(test)]
one_thread::one_thread_per_process!();
