//! Computations of burn-dist itself on the host, not by operations of a backend, and what says what kernels on
//! devices compute: definitions, and the text of kernels in CUDA. Nothing of a GPU's runtime.
//!
//! [`region`] runs formulas over the elements of tensors and copies in any order, [`attention`] scaled dot-product
//! attention, with their gradients, [`product`] products of matrices, and [`int8`] packs matrices into 8 bits;
//! [`random`] draws numbers by index; [`float8`], [`philox`] and [`cuda`] say what kernels elsewhere compute.
//!
//! Kernels in CubeCL's language are those of `burn-dist-cubecl`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod attention;
pub mod cuda;
pub mod float8;
pub mod int8;
pub mod philox;
pub mod product;
pub mod random;
pub mod region;
