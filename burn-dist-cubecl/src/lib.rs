//! Kernels of burn-dist in CubeCL's language, for whatever runtime CubeCL has: what they compute is what the references
//! of `burn-dist-kernels` say, bit by bit; functions of regions within a few units in the last place.
//!
//! One file for each kernel. They take and make tensors that lie without gaps. The package `burn-dist-cubecl` is for
//! the CubeCL of Burn's current line, and `burn-dist-cubecl-021`, of the same sources but for regions, for that of Burn
//! 0.21. With the feature `cuda` this one also has engines in CUDA itself, in `cuda/`: CubeCL launches no kernel that
//! was written in CUDA with the shared memory that they need from 0.11 on. Without a feature that names a runtime
//! nothing is in it.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg(any(feature = "wgpu", feature = "cuda"))]

mod dialect;
mod element;
mod fold;
mod launch;
#[cfg(not(burn_021))]
pub mod region;

#[cfg(all(burn_021, feature = "cuda"))]
pub mod cuda;
pub mod float8;
#[cfg(all(burn_021, feature = "cuda"))]
pub mod source;

pub use {dialect::Client, element::Element, fold::fold_rows, launch::Elements};
