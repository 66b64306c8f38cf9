//! The command `simulate`: how long a step takes on modelled hardware.

use std::sync::Arc;

use serde::Serialize;

use super::args::{MeshArgs, SimulateArgs, StepArgs};
use super::error::Unfit;
use super::exit::End;
use super::job::{Job, Sample, StepRows};
use super::mesh::{Explanation, Mesh};
use super::model::Model;
use super::outputs::{check_chart, draw_chart};
use super::predict;
use super::report::bytes_text;
use super::voice::{complain, say};
use crate::clock::{Hardware, RankSimulation, Simulation};
use crate::explanation::{Ask, PlanError};
use crate::mesh::DType;
use crate::{Fault, Float};

/// Microbatches that are planned of a step with more, unless the command line says otherwise: the first three, which
/// begin the sums of gradients and losses, one that may stand for others, and the last, which the optimizer follows.
const PLANNED: usize = 5;

/// The figures that `--json` prints.
#[derive(Debug, Serialize)]
struct Simulated<'a> {
    size: &'a str,
    mesh: String,
    world_size: usize,
    batch: usize,
    seq: usize,
    /// Microbatches of a step, and how many of them are planned: one stands for the others.
    microbatches: usize,
    planned_microbatches: usize,
    hardware: &'a Hardware,
    step_s: f64,
    tokens_per_s_per_rank: f64,
    /// The share of the devices' flops that are the model's, and that are executed.
    model_flops_utilization: f64,
    hardware_flops_utilization: f64,
    /// The peak of the fullest rank, with what is reserved.
    peak_bytes: u64,
    /// True if that is no more than a device has.
    fits: bool,
    windows: &'a [Simulation],
}

/// Returns the rows of a step: as many for each group of ranks that has rows of its own, if the command line says so.
pub fn batch(args: &SimulateArgs, step: &StepArgs) -> Option<usize> {
    let groups = match &step.devices.forward.axes.mesh {
        Some(mesh) => mesh.group_size(&mesh.data_axes()),
        None => 1,
    };
    let batch = args.batch_per_rank.map(|rows| rows.saturating_mul(groups));
    batch.or(step.batch)
}

/// Returns the type that a step computes its products in.
pub(super) fn of_products(step: &StepArgs) -> DType {
    match step.devices.forward.param_dtype {
        Float::F32 => DType::F32,
        Float::BF16 => DType::BF16,
        Float::F16 => DType::F16,
    }
}

/// A step that was planned and run on modelled hardware.
pub(super) struct Timed {
    /// Its mesh, which executes nothing.
    pub mesh: Mesh,
    /// Microbatches that are planned: one of them stands for those that are not.
    pub planned_microbatches: usize,
    /// Why all are planned, if it was tried with fewer.
    pub why_all: Option<Arc<PlanError>>,
    /// The step, with its windows on the hardware.
    pub steady: Explanation,
}

/// Plans a step of a model of these sizes on rows like `sample`'s, and runs it on modelled hardware.
///
/// # Errors
/// If the rows are too few for the mesh, or the step cannot be planned.
pub(super) fn timed<M: Model>(
    (config, sample): (&M::Config, &Sample<M>),
    rows: StepRows,
    step: &StepArgs,
    plan_microbatches: Option<usize>,
    hardware: &Hardware,
) -> anyhow::Result<Timed> {
    let devices = MeshArgs {
        hardware: Some(hardware.clone()),
        ..step.devices.clone()
    };
    let microbatches = rows.accumulate;
    let mut planned_microbatches = microbatches.min(plan_microbatches.unwrap_or(PLANNED));
    let mut why_all = None;
    loop {
        let mesh = Mesh::dry::<M>(&devices)?;
        rows.check(&mesh, step.repeat_rows)?;
        let asked = (planned_microbatches < microbatches).then(|| u32::try_from(microbatches));
        let ask = Ask {
            hardware: Some(hardware.clone()),
            microbatches: asked.transpose()?,
            ..Ask::default()
        };
        let few = rows.cut_to(planned_microbatches);
        let error = match predict::planned_of::<M>(&mesh, (config, sample), few, 1, &ask) {
            Ok(planned) => {
                return Ok(Timed {
                    mesh,
                    planned_microbatches,
                    why_all,
                    steady: planned.steady,
                });
            }
            Err(error) => error,
        };
        match mesh.fault() {
            Some(Fault::Plan(reason))
                if plan_microbatches.is_none() && matches!(*reason, PlanError::Repeat { .. }) =>
            {
                why_all = Some(reason);
                planned_microbatches = microbatches;
            }
            _ => return Err(error),
        }
    }
}

/// Plans a step and runs it on modelled hardware.
///
/// # Errors
/// If the step cannot be planned, or the chart not be drawn.
pub fn simulate<M: Model>(
    job: &Job<M>,
    step: &StepArgs,
    args: &SimulateArgs,
) -> anyhow::Result<End> {
    let hardware = match args.hardware.read()? {
        Some(hardware) => hardware,
        None => Hardware::preset("h100")?,
    };
    let compile = args.compile || hardware.kernels.compile;
    let hardware = hardware.compiled(compile);
    let devices = predict::costed(&step.devices, job, &hardware)?;
    let step = &StepArgs {
        devices,
        ..step.clone()
    };
    let rows = job.rows;
    let microbatches = rows.accumulate;
    if args.chart.is_some() {
        check_chart(args.chart.as_ref(), &Mesh::dry::<M>(&step.devices)?)?;
    }
    let Timed {
        mesh,
        planned_microbatches,
        why_all,
        steady,
    } = timed::<M>(
        (&job.config, &job.sample),
        rows,
        step,
        args.plan_microbatches,
        &hardware,
    )?;
    if planned_microbatches == microbatches {
        job.check_flops(steady.model_flops)?;
    }
    let windows = steady.simulations;
    let dtype = of_products(step);
    let ranks = || windows.iter().flat_map(|window| &window.ranks);
    let executed = |window: &Simulation| most(&window.ranks, |rank| rank.flops);
    let unfit = Unfit::of(&steady.memory, &hardware);
    let step_s: f64 = windows.iter().map(Simulation::step_s).sum();
    let world_size = mesh.world_size();
    let share = |flops: f64| flops / step_s / hardware.peak_flops(dtype);
    let simulated = Simulated {
        size: &job.name,
        mesh: mesh.name(),
        world_size,
        batch: rows.batch,
        seq: rows.each,
        microbatches,
        planned_microbatches,
        hardware: &hardware,
        step_s,
        tokens_per_s_per_rank: (rows.batch * rows.each) as f64 / step_s / world_size as f64,
        model_flops_utilization: share(steady.model_flops / world_size as f64),
        hardware_flops_utilization: share(windows.iter().map(executed).sum()),
        peak_bytes: ranks().map(|rank| rank.peak_bytes).max().unwrap_or(0),
        fits: unfit.is_none(),
        windows: &windows,
    };
    let pipeline = windows.iter().find_map(Simulation::pipeline);
    if let (Some(path), Some(pipeline)) = (&args.chart, &pipeline) {
        let title = format!("{}, {}", mesh.name(), hardware.name);
        draw_chart(path, &[(&title, pipeline)])?;
    }
    let end = match &unfit {
        Some(_) => End::Unfit,
        None => End::Done,
    };
    if args.json {
        if let Some(unfit) = unfit {
            complain(&unfit.into());
        }
        say!("{}", serde_json::to_string(&simulated)?);
        return Ok(end);
    }
    if let Some(unfit) = unfit {
        say!("{unfit}");
    }
    let float8 = step.devices.forward.float8.as_ref();
    let float8 = float8.map(|float8| format!(", layers in float8 {float8}"));
    say!(
        "{}, {rows}, mesh {} ({world_size} rank(s)), {dtype} products{}{}",
        simulated.size,
        simulated.mesh,
        float8.unwrap_or_default(),
        if compile { ", compiled" } else { "" }
    );
    say!(
        "{:.0} {} a second and rank; {:.1} % of the peak of {dtype} by the flops of the model, {:.1} % by those of \
         the plan; at most {} of {}",
        simulated.tokens_per_s_per_rank,
        rows.unit,
        100.0 * simulated.model_flops_utilization,
        100.0 * simulated.hardware_flops_utilization,
        bytes_text(simulated.peak_bytes),
        bytes_text(hardware.memory_bytes())
    );
    if planned_microbatches < microbatches {
        say!(
            "planned {planned_microbatches} of {microbatches} microbatches; one of them stands for the others"
        );
    }
    if let Some(reason) = why_all {
        say!("planned all {microbatches} microbatches: {reason}");
    }
    if let Some(pipeline) = &pipeline {
        say!("bubble of the stages: {:.1} %", 100.0 * pipeline.bubble());
    }
    if let Some(path) = &args.chart {
        say!("chart: {}", path.display());
    }
    for window in &windows {
        say!("{}", window.to_string().trim_end());
    }
    Ok(end)
}

/// Returns the most that a rank has.
fn most(ranks: &[RankSimulation], of: impl Fn(&RankSimulation) -> f64) -> f64 {
    ranks.iter().map(of).fold(0.0, f64::max)
}
