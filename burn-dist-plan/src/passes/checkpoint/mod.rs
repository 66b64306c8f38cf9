//! Activation checkpointing: what a unit's forward made is made again in the backward, instead of being kept.
//!
//! A rewrite of the common program, after layouts are chosen: a clone of a step has the layouts, the split and the
//! random stream of the original, so what it makes is bitwise the same on every mesh. Nothing in user code, autodiff or
//! the executor knows of it.
//!
//! ```text
//! visits      which stretch of the program works on which unit                visits.rs
//! keep        which units, and what of them is kept                           keep.rs
//! rewrite     clones before the first use in the backward                     rewrite.rs
//! ```
//!
//! A *segment* is the stretch of a visit to a unit; a unit has one per pass forward and one per pass backward. What is
//! made in a forward segment and used by the next one is the border between two units and stays. What is used only
//! further on (that is: by the backward) is made again, from the border. Gradients, new parameters and whatever else
//! flows elementwise into what outlives the window stay too.
//!
//! Only what lives and dies within one window can be made again: a program that reads its loss before the backward
//! keeps its activations between windows, and keeps them under every policy. The last unit of a model that ends with a
//! unit has its forward and backward in one segment and keeps its activations, which are needed at once.
//!
//! # Source
//! Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174); selective: Korthikanti et al.
//! (arXiv:2205.05198, section 5).

mod keep;
mod report;
mod rewrite;
#[cfg(test)]
mod tests;
mod visits;

use super::{Context, Report, State};
use crate::error::PlanError;
use crate::facts::Facts;
use crate::facts::flow::Flow;
use crate::ir::{Op, Program};
use crate::mesh::MeshShape;
use crate::policy::ActivationCheckpoint;

pub use report::Recomputed;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let mut report = Report::default();
    for program in &mut state.programs {
        report.recomputed += checkpoint(program, &state.facts, context.mesh);
    }
    Ok(report)
}

/// Rewrites the program so that the forward's values are made again where the policies of units say so.
fn checkpoint<O: Op>(program: &mut Program<O>, facts: &Facts, mesh: &MeshShape) -> Recomputed {
    let mut tags = program.values.iter().filter_map(|value| value.tag.as_ref());
    if tags.all(|tag| tag.policy.checkpoint == ActivationCheckpoint::None) {
        return Recomputed::default();
    }
    let flow = Flow::new(program, facts, mesh);
    let visits = visits::visits(program, &flow);
    if visits.segments.is_empty() {
        // No parameter is used: initialisation, metrics.
        return Recomputed::default();
    }
    let mut sections = keep::sections(&visits);
    for section in &mut sections {
        section.find(program, &flow, &visits);
    }
    sections.retain(|section| !section.far.is_empty());
    let visits_seen = visits.num_needed(&flow);
    keep::keep(program, &flow, mesh, &mut sections);
    let mut done = rewrite::rewrite(program, &flow, &visits, sections);
    done.visits_seen = visits_seen;
    done
}
