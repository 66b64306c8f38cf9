//! Linear layers in float8: the operations, and the pass that puts them in the place of a layer's products.
//!
//! ```text
//! op          what is computed, with its rule                        op.rs
//! layers      which products of a window, and why others are not     layers.rs
//! rewrite     amax -> (max over ranks) -> scale -> quantize          rewrite.rs
//! ```
//!
//! # Source
//! Formats and scaling: Micikevicius et al., "FP8 formats for deep learning" (arXiv:2209.05433). Recipes, and one
//! reduction for the scales of all weights: torchao's float8 training.

mod layers;
mod rewrite;
#[cfg(test)]
mod tests;

pub use layers::Float8Layer;
pub(crate) use layers::layers;
pub(crate) use rewrite::rewrite;
