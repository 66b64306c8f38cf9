//! Kernels in CubeCL's language as texts of CUDA, compiled to machine code and for the host. No GPU is needed:
//!
//! ```text
//! cargo xtask kernels
//! ```

#[path = "cuda_sources/machine_code.rs"]
mod machine_code;
#[path = "cuda_sources/mma.rs"]
mod mma;

#[path = "../../burn-dist-kernels/tests/emulated/host.rs"]
mod host;
#[path = "../../burn-dist-kernels/tests/machine_code/toolkit.rs"]
mod toolkit;
