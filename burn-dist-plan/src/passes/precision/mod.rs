//! Mixed precision: a window with 16-bit types where its units ask for them, and with parameters of 8 bits unpacked
//! where they are used.

mod rewrite;
#[cfg(test)]
mod tests;
mod unpack;

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
    let first = &state.reduces_first;
    if let Some(unpacked) = unpack::unpacked_by_visit(&state.window, &state.visits, first) {
        state.rewritten(unpacked);
    }
    Ok(Report::default())
}
