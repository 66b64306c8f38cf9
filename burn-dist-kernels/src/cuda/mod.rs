//! Float8 on NVIDIA's GPUs, in CUDA itself: what CubeCL's language has no words for.
//!
//! Sources, index computations and the choice of an engine are pure, and tested without a GPU. With the feature `cuda`
//! they also run. [`flag_wait`] is beside them: a wait on a backend's own stream.

pub mod engine;
pub mod flag_wait;
#[cfg(feature = "cuda")]
mod invert;
pub mod product;
pub mod quantize;
pub mod reference;
#[cfg(feature = "cuda")]
pub mod run;
pub mod transpose;
pub mod wgmma;
