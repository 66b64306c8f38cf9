//! Distributed N-D parallelism for [Burn](https://burn.dev): a mesh of devices as one device.
//!
//! A [`DeviceMesh`] is a device of Burn. It records a program, partitions it over the mesh as plain data, and runs each
//! rank's part on an inner backend. What of a model is split, [`Parallelize`](trait@Parallelize) or a [`Plan`] says;
//! [`explain()`] tells what that costs before anything runs, [`simulate`] how long it takes on modelled hardware. A
//! [`data::Loader`] hands out batches, and goes on where another run was left.
//!
//! Burn finds the device under the name of burn-ndarray, which a program patches:
//!
//! ```toml
//! [dependencies]
//! burn = { version = "=0.22.1", default-features = false, features = ["std", "autodiff", "flex", "optim"] }
//! burn-dist = { path = "../burn-dist/burn-dist" }
//!
//! [patch.crates-io]
//! burn-ndarray = { path = "../burn-dist/carriers/burn-ndarray" }
//! ```
//!
//! Burn is 0.22.1 exactly, Rust 1.95 or later. A program on four ranks, which are threads of its process here:
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig, Relu};
//! use burn::optim::{AdamConfig, GradientsParams, Optimizer};
//! use burn::tensor::{Tensor, TensorData};
//! use burn_dist::{DTensor, DeviceMesh, Parallelize};
//!
//! #[derive(Module, Debug, Parallelize)]
//! struct FeedForward {
//!     #[parallel(colwise)] up: Linear,
//!     #[parallel(rowwise)] down: Linear,
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mesh = DeviceMesh::builder().axis("fsdp", 2).axis("tp", 2).build()?; // 4 ranks: threads of this process
//!     let device = mesh.device().autodiff();
//!     let (up, down) = (LinearConfig::new(64, 256).init(&device), LinearConfig::new(256, 64).init(&device));
//!     let mut model = FeedForward { up, down }.parallelize(&mesh)?;
//!     let mut optimizer = AdamConfig::new().init();
//!     for step in 0..10 {
//!         let values: Vec<f32> = (0..256 * 64).map(|i| ((i * 37 + step * 101) % 97) as f32 / 97.0).collect();
//!         let x = Tensor::<2>::from_data(TensorData::new(values, [256, 64]), &device); // rows split over fsdp
//!         let y = model.down.forward(Relu::new().forward(model.up.forward(x.clone())));
//!         let loss = (y - x).powi_scalar(2).mean();
//!         let gradients = GradientsParams::from_grads(loss.backward(), &model);
//!         model = optimizer.step(1e-2, model, gradients);
//!         println!("loss {:.4}", loss.into_scalar::<f32>());
//!     }
//!     assert_eq!(model.up.weight.val().layout_text()?, "[{fsdp*}, {tp}]"); // columns over tp, rows at rest over fsdp
//!     Ok(())
//! }
//! ```
//!
//! The [`guides`] go through it topic by topic: pages for people, without items.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

// The derive names this crate by its outside path, also in the crate's own tests.
extern crate self as burn_dist;

mod bridge;
pub mod checkpoint;
pub mod data;
mod device;
#[cfg(all(doc, not(doctest)))]
pub mod guides;
pub mod nn;
pub mod optim;
pub mod parallel;
mod surface;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "train")]
pub mod trainer;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub use burn_dist_engine::backend;
pub use burn_dist_engine::custom;
#[doc(inline)]
pub use burn_dist_engine::run::Fault;
#[doc(inline)]
pub use burn_dist_engine::{Hold, InputPolicy, MeshDevice};
#[doc = include_str!("parallel/derive.md")]
pub use burn_dist_macros::Parallelize;
#[doc(inline)]
pub use burn_dist_plan::clock;
#[doc(inline)]
pub use burn_dist_plan::policy::*;
pub use device::{BurnDevice, DeviceMesh, DeviceMeshBuilder};
#[doc(hidden)]
pub use parallel::private as __private;
#[doc(inline)]
pub use parallel::{
    apply::ParallelizeWith,
    describe::Parallelize,
    dtensor::{
        DTensor, LocalParts, OnMesh, ProcessLocal, explain, explain_after, explain_why, simulate,
    },
    plan::Plan,
};
pub use surface::{explanation, launch, layout, mesh, report, schedule};

use burn_dist_engine::{ops, record, run};
use burn_dist_plan as plan;

/// The backend that Burn has for a mesh: what a program implements its own operations for.
pub type Dist = record::Dist;
/// How it knows the ranks of a mesh: by what the program registers.
pub(crate) use burn_dist_door::Registered;

/// The programs of the README and of the guides, as doctests.
#[cfg(doctest)]
mod programs {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide/async-tp.md")]
    struct AsyncTp;
    #[doc = include_str!("../docs/guide/attention.md")]
    struct Attention;
    #[doc = include_str!("../docs/guide/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../docs/guide/context.md")]
    struct Context;
    #[doc = include_str!("../docs/guide/custom-operations.md")]
    struct CustomOperations;
    #[doc = include_str!("../docs/guide/data.md")]
    struct Data;
    #[doc = include_str!("../docs/guide/experts.md")]
    struct Experts;
    #[doc = include_str!("../docs/guide/explain.md")]
    struct Explain;
    #[cfg(feature = "train")]
    #[doc = include_str!("../docs/guide/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../docs/guide/models.md")]
    struct Models;
    #[cfg(feature = "train")]
    #[doc = include_str!("../docs/guide/own-model.md")]
    struct OwnModel;
    #[doc = include_str!("../docs/guide/pipeline.md")]
    struct Pipeline;
    #[doc = include_str!("../docs/guide/processes.md")]
    struct Processes;
    #[cfg(feature = "train")]
    #[doc = include_str!("../docs/guide/texts.md")]
    struct Texts;
}

#[cfg(test)]
one_thread::one_thread_per_process!();
