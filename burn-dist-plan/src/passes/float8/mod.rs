//! Linear layers in float8: operations in 8 bits in the place of a layer's products.
//!
//! ```text
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

use super::{Context, Report, State};
use crate::error::PlanError;
use crate::ir::Op;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    if state.policies.iter().all(|policy| policy.float8.is_none()) {
        return Ok(Report::default());
    }
    let layers = layers::layers(&state.window, &state.facts, context.mesh);
    if layers.has_products() {
        let (first, store) = (&state.reduces_first, context.options.float8_store);
        state.rewritten(rewrite::rewrite(
            &state.window,
            first,
            &state.visits,
            &layers,
            store,
        ));
    }
    Ok(Report {
        float8: layers.layers,
        ..Report::default()
    })
}
