//! What burn-dist computes itself, instead of through operations of a backend. Each kernel lies beside a reference that
//! says what its bits are.
//!
//! [`float8::reference`] is there without features. With `wgpu` or `cuda` come kernels in CubeCL's language, one file
//! each, for whatever runtime CubeCL has; with `cuda` also engines in CUDA itself, in `cuda/`. Kernels take and make
//! tensors that lie without gaps.

pub mod attention;
pub mod cuda;
pub mod float8;
pub mod philox;

#[cfg(feature = "cubecl")]
mod element;
#[cfg(feature = "cubecl")]
mod fold;
#[cfg(feature = "cubecl")]
mod launch;
#[cfg(feature = "cuda")]
pub mod source;

#[cfg(feature = "cubecl")]
pub use {element::Element, fold::fold_rows, launch::Elements};
