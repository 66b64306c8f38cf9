//! The work and memory of a step, known before it runs: planned on a mesh that executes nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, bail};
use burn_core::tensor::Tensor;

use super::args::{MeshArgs, PipelineArgs, StagesBy};
use super::batch::Batch;
use super::job::{Job, Sample, StepRows};
use super::mesh::{Explanation, Mesh};
use super::model::Model;
use super::optimizer::optimizer;
use super::report::bytes_text;
use super::step::{Norm, step};
use crate::clock::{Hardware, ModuleCosts};
use crate::explanation::{Ask, MemoryClass, MemoryPlan};
use crate::mesh::MeshShape;

/// The work and memory of the steps of a run.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// Memory of the first, which makes the parameters and the optimizer's state.
    pub first: Vec<MemoryPlan>,
    /// Every later one.
    pub steady: Explanation,
}

/// Plans two steps of a model on a dry mesh, of so many microbatches each: the first makes the parameters and the
/// optimizer's state, the second is like all later ones, and is asked `ask`. `next` makes the rows of a step of so many
/// microbatches.
///
/// # Errors
/// If a step cannot be planned.
pub fn steps<M: Model>(
    mesh: &Mesh,
    model: M,
    mut next: impl FnMut(usize) -> anyhow::Result<M::Batch>,
    [first, later]: [usize; 2],
    ask: &Ask,
) -> anyhow::Result<Predicted> {
    let device = mesh.device();
    let mut optim = optimizer();
    let mut plan = |model, microbatches: usize, ask: &Ask| {
        let batch = next(microbatches)?;
        let (result, plan) = mesh.explain(ask.clone(), || {
            let hold = mesh.hold();
            let parts = batch.split(microbatches);
            let parts = parts.iter().map(|part| part.enter(device, false));
            let parts = parts.collect::<Result<_, _>>()?;
            let (model, taken) = step(model, &mut optim, parts, Norm::Unknown, 1e-4);
            drop(hold);
            taken.loss.try_into_data()?;
            anyhow::Ok(model)
        })?;
        anyhow::Ok((result.context("the step cannot be planned")?, plan))
    };
    let (model, made) = plan(model, first, &Ask::default())?;
    let (_model, steady) = plan(model, later, ask)?;
    Ok(Predicted {
        first: made.memory,
        steady,
    })
}

/// Plans two steps of a job's model on `rows`, the first one of `first` microbatches: however many these are, it leaves
/// the same behind. The second is asked `ask`.
///
/// # Errors
/// If a step cannot be planned.
pub fn planned<M: Model>(
    mesh: &Mesh,
    job: &Job<M>,
    rows: StepRows,
    first: usize,
    ask: &Ask,
) -> anyhow::Result<Predicted> {
    planned_of::<M>(mesh, (&job.config, &job.sample), rows, first, ask)
}

/// Does the same of a model of these sizes, on rows like `sample`'s.
pub(super) fn planned_of<M: Model>(
    mesh: &Mesh,
    (config, sample): (&M::Config, &Sample<M>),
    rows: StepRows,
    first: usize,
    ask: &Ask,
) -> anyhow::Result<Predicted> {
    let model = mesh.parallelize(M::build(config, mesh.device()))?;
    let next = |microbatches| sample(rows.of_microbatch() * microbatches);
    steps(mesh, model, next, [first, rows.accumulate], ask)
}

/// Plans the loss of one batch that is held out, on a dry mesh.
///
/// # Errors
/// If it cannot be planned.
pub fn held_out<M: Model>(mesh: &Mesh, job: &Job<M>) -> anyhow::Result<Explanation> {
    let model = mesh.parallelize(M::build(&job.config, mesh.device()))?;
    let model = model.valid();
    let (device, batch) = (mesh.inference_device(), (job.sample)(job.rows.batch)?);
    let (result, plan) = mesh.explain(Ask::default(), || {
        let hold = mesh.hold();
        let parts = batch.split(job.rows.accumulate);
        let mut losses = Vec::new();
        for part in parts {
            losses.extend(model.held_out(part.enter(&device, false)?));
        }
        drop(hold);
        Tensor::cat(losses, 0).try_into_data()?;
        anyhow::Ok(())
    })?;
    result.context("the loss cannot be planned")?;
    Ok(plan)
}

/// Returns the devices with what modules cost on `hardware`, if stages are cut by that.
///
/// # Errors
/// If the model names no list that stages are cut from, or a step cannot be planned.
pub fn costed<M: Model>(
    devices: &MeshArgs,
    job: &Job<M>,
    hardware: &Hardware,
) -> anyhow::Result<MeshArgs> {
    let mut devices = devices.clone();
    let has_stages = |mesh: &MeshShape| mesh.pipeline_axis().is_some();
    if devices.pipeline.stages_by == StagesBy::Layers
        || !devices.forward.axes.mesh.as_ref().is_some_and(has_stages)
    {
        return Ok(devices);
    }
    if M::UNITS.is_empty() {
        bail!(
            "--stages-by cost cuts a list of modules into stages, and this model names none (Model::UNITS): its stages \
             are those of its plan"
        );
    }
    let mut one = devices.clone();
    one.forward.axes.mesh = None;
    one.pipeline = PipelineArgs::default();
    let ask = Ask {
        hardware: Some(hardware.clone()),
        ..Ask::default()
    };
    let step = planned(&Mesh::dry::<M>(&one)?, job, job.rows.cut_to(1), 1, &ask)?;
    devices.pipeline.costs = Some(ModuleCosts::new(&step.steady.simulations));
    Ok(devices)
}

/// Memory of the ranks as a table: what they hold when they hold most, and the most of each class; ranks with equal
/// lines share their rows.
pub fn memory_table(memory: &[MemoryPlan]) -> String {
    let mut text = format!("memory of a step, as planned\n{:>8} {:>10}", "rank", "peak");
    for class in MemoryClass::ALL {
        let _ = write!(text, " {:>10}", class.name());
    }
    text += "  at\n";
    let mut rows: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, plan) in memory.iter().enumerate() {
        let cells = |bytes: &BTreeMap<MemoryClass, u64>| {
            let bytes = MemoryClass::ALL.map(|class| bytes.get(&class).copied().unwrap_or(0));
            bytes
                .map(|bytes| format!(" {:>10}", bytes_text(bytes)))
                .concat()
        };
        let row = format!(
            "{:>10}{}  {}\n{:>8} {:>10}{}  each by itself",
            bytes_text(plan.peak_bytes),
            cells(&plan.peak_by_class),
            plan.peak_cause,
            "",
            "at most",
            cells(&plan.class_peaks)
        );
        match rows.iter_mut().find(|(same, _)| *same == row) {
            Some((_, ranks)) => ranks.push(rank),
            None => rows.push((row, vec![rank])),
        }
    }
    for (row, ranks) in rows {
        let runs = ranks.chunk_by(|one, next| one + 1 == *next);
        let runs: Vec<String> = runs
            .map(|run| match run {
                [first, .., last] => format!("{first}..{last}"),
                run => run.iter().map(usize::to_string).collect(),
            })
            .collect();
        let _ = writeln!(text, "{:>8} {row}", runs.join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_are_alike_share_a_row() {
        let plan = |peak_bytes| MemoryPlan {
            peak_bytes,
            ..MemoryPlan::default()
        };
        let text = memory_table(&[plan(1024), plan(1024), plan(2048)]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(
            rows[0].contains("0..1") && rows[0].contains("1.0 KiB"),
            "{text}"
        );
        assert!(rows[1].contains("at most"), "{text}");
        assert!(
            rows[2].contains(" 2 ") && rows[2].contains("2.0 KiB"),
            "{text}"
        );
        assert_eq!(rows.len(), 4);
    }
}
