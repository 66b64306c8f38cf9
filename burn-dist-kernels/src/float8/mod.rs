//! Float8: what `burn_dist_plan::float8` plans, run. [`mod@reference`] is the definition, on the host; beside it lie
//! the kernels, one operation each.

mod form;
pub mod reference;
mod tiles;

#[cfg(feature = "cubecl")]
pub(crate) mod amax;
#[cfg(feature = "cubecl")]
mod bits;
#[cfg(feature = "cubecl")]
pub(crate) mod gemm;
#[cfg(feature = "cuda")]
pub(crate) mod mma;
#[cfg(feature = "cubecl")]
pub(crate) mod quantize;
#[cfg(feature = "cubecl")]
pub(crate) mod scale;

pub use form::Form;
pub use tiles::Tiles;

#[cfg(feature = "cubecl")]
pub use {
    amax::amax,
    gemm::{Operand, product},
    quantize::quantize,
    scale::scale_all as scale,
};
