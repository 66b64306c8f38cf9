//! Float8 on NVIDIA's GPUs, in CUDA itself: what CubeCL's language has no words for.
//!
//! Sources, index computations and the choice of an engine are pure, and tested without a GPU; `burn-dist-cubecl-021`
//! runs them. [`flag_wait`] is beside them: a wait on a backend's own stream.

pub mod engine;
pub mod flag_wait;
pub mod invert;
pub mod product;
pub mod quantize;
pub mod reference;
pub mod transpose;
pub mod wgmma;
