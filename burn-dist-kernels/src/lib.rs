//! What burn-dist computes itself on the host, instead of through operations of a backend, and what says what kernels on
//! devices compute: definitions, and the text of kernels in CUDA. Nothing of a GPU's runtime.
//!
//! Kernels in CubeCL's language are those of `burn-dist-cubecl`.

pub mod attention;
pub mod cuda;
pub mod float8;
pub mod philox;
