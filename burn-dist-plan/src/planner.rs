//! From a window to a plan: the passes, in order.

use std::collections::BTreeMap;

use crate::error::PlanError;
use crate::ir::{Op, Output, ReadPlan, Window};
use crate::layout::Layout;
use crate::mesh::{MeshShape, Rank};
use crate::options::PlanOptions;
use crate::passes::State;
use crate::plan::Plan;
use crate::text::text;

/// Plans a window for the ranks named in `options`.
///
/// # Errors
/// [`PlanError`] if a layout that the user asked for is not possible, or an operation is not known.
pub fn plan<O: Op>(
    window: &Window<O>,
    mesh: &MeshShape,
    options: &PlanOptions,
) -> Result<Plan<O>, PlanError> {
    let mut state = State::new(window, mesh, options);
    state.run(None)?;
    let ranks = state.take_ranks();
    let program = state.program();
    let reads = program
        .reads
        .iter()
        .map(|(slot, value)| {
            let layout = program.slots[*slot as usize].layout.clone();
            let info = &program.values[*value as usize];
            ReadPlan {
                senders: match options.everyone_reads {
                    true => options.ranks.iter().take(1).copied().collect(),
                    false => senders(&layout, mesh, state.reader(*value)),
                },
                layout,
                shape: info.shape.clone(),
                dtype: info.dtype,
            }
        })
        .collect();
    let outputs = program
        .outputs
        .iter()
        .map(|output| Output {
            value: output.value,
            layout: output.layout.clone(),
            role: output.role.clone(),
            origin: output.origin,
            stage: state
                .stages
                .as_ref()
                .and_then(|stages| stages.home(output.value)),
        })
        .collect();
    let mut operations = BTreeMap::new();
    for op in &window.ops {
        *operations.entry((op.family(), op.name())).or_default() += 1;
    }
    let accumulated = program.accumulated;
    Ok(Plan {
        numbers: options.ranks.clone(),
        ranks,
        accumulated,
        runs: program.runs,
        operations,
        outputs,
        reads,
        num_streams: program.num_streams,
        collectives: state.collectives,
        overlaps: state.overlaps,
        memory: state.memory,
        scheduled: state.scheduled,
        recomputed: state.recomputed,
        float8: state.float8,
        policies: state.policies,
        redundancy: state.redundancy,
    })
}

/// Returns what there is of a window after one of [`PASSES`](crate::PASSES), as text: the window with its facts, the
/// program common to all ranks, or the tasks of the first rank.
///
/// # Errors
/// As [`plan`]; [`PlanError::UnknownPass`] if there is no pass of that name.
pub fn text_after<O: Op>(
    window: &Window<O>,
    mesh: &MeshShape,
    options: &PlanOptions,
    pass: &str,
) -> Result<String, PlanError> {
    let mut state = State::new(window, mesh, options);
    state.run(Some(pass))?;
    Ok(text(&state))
}

/// Returns the ranks that together hold every element once: those at coordinate 0 of the axes that do not split the
/// tensor, and at that of its stage.
fn senders(layout: &Layout, mesh: &MeshShape, stage_coord: usize) -> Vec<Rank> {
    let used = layout.axes_used();
    let pipeline = mesh.pipeline_axis();
    (0..mesh.num_ranks() as u32)
        .map(Rank)
        .filter(|&rank| {
            mesh.axis_indices().all(|axis| {
                let coord = mesh.coord(rank, axis);
                match pipeline == Some(axis) {
                    true => coord == stage_coord,
                    false => used.contains(&axis) || coord == 0,
                }
            })
        })
        .collect()
}
