//! Mixed precision: a window with 16-bit types where its units ask for them.

mod rewrite;
#[cfg(test)]
mod tests;

use super::{Context, Report, State};
use crate::error::PlanError;
use crate::ir::Op;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let (facts, visits) = (&state.facts, &state.visits);
    if let Some(precise) = rewrite::precise(&state.window, facts, visits, context.options)? {
        state.rewritten(precise);
    }
    Ok(Report::default())
}
