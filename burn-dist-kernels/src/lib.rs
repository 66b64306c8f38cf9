//! Computations of burn-dist itself on the host, not by operations of a backend, and what says what kernels on
//! devices compute: definitions, and the text of kernels in CUDA. Nothing of a GPU's runtime.
//!
//! Kernels in CubeCL's language are those of `burn-dist-cubecl`.

pub mod attention;
pub mod cuda;
pub mod float8;
pub mod philox;
pub mod region;
