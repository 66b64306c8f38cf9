//! From a window to a plan: the passes, one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::PlanError;
use crate::ir::{Op, Output, ReadPlan, Window};
use crate::layout::Layout;
use crate::mesh::{MeshShape, Rank};
use crate::options::PlanOptions;
use crate::passes::staging::Split;
use crate::passes::{Context, Pass, Report, State, pass_index, passes};
use crate::plan::Plan;
use crate::text::text;

/// The passes over a window, as far as they have run.
pub(crate) struct Planner<'a, O: Clone> {
    pub context: Context<'a>,
    pub state: State<'a, O>,
    pub report: Report,
}

impl<'a, O: Op> Planner<'a, O> {
    pub(crate) fn new(
        window: &'a Window<O>,
        mesh: &'a MeshShape,
        options: &'a PlanOptions,
    ) -> Self {
        Self {
            context: Context {
                mesh,
                options,
                why: None,
            },
            state: State::new(window),
            report: Report::default(),
        }
    }

    /// Runs the passes up to one of them, or all.
    ///
    /// # Errors
    /// [`PlanError`] of the first that fails; [`PlanError::UnknownPass`] if there is none of that name.
    pub(crate) fn run(&mut self, last: Option<&str>) -> Result<(), PlanError> {
        self.run_from(0, last)
    }

    /// Runs the passes from that of index `first` on, as [`Self::run`] does.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn run_from(&mut self, first: usize, last: Option<&str>) -> Result<(), PlanError> {
        let passes = passes::<O>();
        let count = match last {
            Some(last) => pass_index(last)? + 1,
            None => passes.len(),
        };
        let wanted = &passes[first..count];
        for run in wanted.chunk_by(|one, next| one.on == next.on) {
            match self.state.split.take() {
                Some(split) => self.each(&split, run, run.last().map(|pass| pass.name) == last)?,
                None => self.passes(run)?,
            }
        }
        if let Some(split) = self.state.split.take() {
            let whole = self.state.program();
            let programs = split.coords().map(|coord| split.program(whole, coord));
            self.state.programs = programs.collect();
        }
        Ok(())
    }

    fn passes(&mut self, passes: &[Pass<O>]) -> Result<(), PlanError> {
        for pass in passes {
            let report = (pass.run)(&mut self.state, &self.context)?;
            self.report.add(report);
        }
        Ok(())
    }

    /// Runs passes on the program of one coordinate after the other. The steps of a program go once they are lowered,
    /// unless they are wanted.
    fn each(
        &mut self,
        split: &Split,
        passes: &[Pass<O>],
        keeps_steps: bool,
    ) -> Result<(), PlanError> {
        let mut done = Vec::new();
        let whole = std::mem::take(&mut self.state.programs);
        for coord in split.coords() {
            self.state.programs = vec![split.program(&whole[0], coord)];
            self.passes(passes)?;
            for mut program in self.state.programs.drain(..) {
                if !keeps_steps {
                    program.steps = Vec::new();
                }
                // Of those without steps, one is as good as another.
                if keeps_steps || done.is_empty() {
                    done.push(program);
                }
            }
        }
        self.state.programs = done;
        Ok(())
    }
}

/// Plans a window for the ranks named in `options`.
///
/// # Errors
/// [`PlanError`] if a layout that the user asked for is not possible, or an operation is not known.
pub fn plan<O: Op>(
    window: &Window<O>,
    mesh: &MeshShape,
    options: &PlanOptions,
) -> Result<Plan<O>, PlanError> {
    let mut planner = Planner::new(window, mesh, options);
    planner.run(None)?;
    Ok(finish(planner, window))
}

/// Returns the plan of `window`, all of whose passes have run.
pub(crate) fn finish<O: Op>(planner: Planner<'_, O>, window: &Window<O>) -> Plan<O> {
    let Planner {
        mut state,
        report,
        context: Context { mesh, options, .. },
    } = planner;
    let ranks = std::mem::take(&mut state.ranks).into_iter();
    let ranks = ranks.map(|(_, lowered)| Arc::new(lowered.plan)).collect();
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
    Plan {
        numbers: options.ranks.clone(),
        ranks,
        accumulated,
        operations,
        outputs,
        reads,
        num_streams: program.num_streams,
        collectives: state.collectives,
        overlaps: report.overlaps,
        memory: report.memory,
        scheduled: report.scheduled,
        recomputed: report.recomputed,
        float8: report.float8,
        fused: report.fused,
        policies: state.policies,
        redundancy: report.redundancy.unwrap_or_default(),
    }
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
    let mut planner = Planner::new(window, mesh, options);
    planner.run(Some(pass))?;
    Ok(text(&planner.state, mesh))
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
