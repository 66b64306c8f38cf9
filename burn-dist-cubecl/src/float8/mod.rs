//! Float8: what `burn_dist_plan::float8` plans, as kernels, one operation each. Their definition is
//! `burn_dist_kernels::float8::reference`.

pub(crate) mod amax;
mod bits;
mod form;
pub(crate) mod gemm;
#[cfg(all(burn_021, feature = "cuda"))]
pub(crate) mod mma;
pub(crate) mod quantize;
pub(crate) mod scale;
mod tiles;

pub use form::Form;
pub use tiles::Tiles;

pub use {
    amax::amax,
    gemm::{Operand, product},
    quantize::quantize,
    scale::scale_all as scale,
};
