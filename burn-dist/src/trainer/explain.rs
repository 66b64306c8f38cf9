//! The commands `explain` and `mesh`: what a step does, and which part of a model is where.

use serde::Serialize;

use super::args::{ExplainArgs, MeshArgs, ShowMeshArgs, StepArgs};
use super::error::Unfit;
use super::exit::End;
use super::job::Job;
use super::mesh::Mesh;
use super::model::Model;
use super::predict::{self, memory_table};
use super::report::{bytes_text, write_json};
use super::voice::{say, speaks};
use crate::clock::Hardware;
use crate::explanation::Ask;
use crate::launch;
use crate::nn::num_trained;

/// The plan as `--json` writes it.
#[derive(Debug, Serialize)]
struct Explained {
    size: String,
    num_params: usize,
    mesh: String,
    world_size: usize,
    batch: usize,
    seq: usize,
    step_flops: f64,
    parameter_bytes: u64,
    gradient_bytes: u64,
    optimizer_bytes: u64,
    plan: serde_json::Value,
}

/// Plans a step and shows what it does, below what there is to say `about` the model.
///
/// # Errors
/// If the step cannot be planned, or the report not be written.
pub fn explain<M: Model>(
    job: &Job<M>,
    step: &StepArgs,
    args: &ExplainArgs,
    about: &str,
) -> anyhow::Result<End> {
    let hardware = args.hardware.read()?;
    let costs_on = hardware
        .clone()
        .map_or_else(|| Hardware::preset("h100"), Ok)?;
    let mut devices = predict::costed(&step.devices, job, &costs_on)?;
    devices.hardware.clone_from(&hardware);
    let mesh = Mesh::dry::<M>(&devices)?;
    job.rows.check(&mesh, step.repeat_rows)?;
    let ask = Ask {
        after: args.after,
        why: args.why,
        ..Ask::default()
    };
    let plan = predict::planned(&mesh, job, job.rows, job.rows.accumulate, &ask)?.steady;
    job.check_flops(plan.model_flops)?;
    let unfit = hardware.and_then(|hardware| Unfit::of(&plan.memory, &hardware));
    let model = M::build(&job.config, mesh.device());
    let (num_params, num_trained) = (mesh.num_params(&model)?, num_trained(&model));
    let trained_bytes = 4 * num_trained as u64;
    let explained = Explained {
        size: job.name.clone(),
        num_params,
        mesh: mesh.name(),
        world_size: mesh.world_size(),
        batch: job.rows.batch,
        seq: job.rows.each,
        step_flops: plan.model_flops,
        parameter_bytes: 4 * num_params as u64,
        gradient_bytes: trained_bytes,
        // AdamW keeps two moments.
        optimizer_bytes: 2 * trained_bytes,
        plan: plan.json,
    };
    if let Some(unfit) = &unfit {
        say!("{unfit}\n");
    }
    say!("{about}");
    say!("\na step of {}", job.rows);
    say!(
        "in f32, over all ranks: parameters {}, gradients {}, AdamW {}",
        bytes_text(explained.parameter_bytes),
        bytes_text(explained.gradient_bytes),
        bytes_text(explained.optimizer_bytes)
    );
    say!("\n{}", plan.text);
    say!("{}", memory_table(&plan.memory));
    if let Some(pass) = args.after {
        say!("\na step after the pass {pass}\n\n{}", plan.after);
    }
    if let Some(value) = args.why {
        match plan.why.is_empty() {
            true => say!("\na step has no value {value}"),
            false => say!("\nwhy {value} is made so\n\n{}", plan.why),
        }
    }
    // All processes know the same plan.
    if let Some(path) = args.json.as_ref().filter(|_| speaks()) {
        write_json(path, &explained)?;
        say!("report: {}", path.display());
    }
    Ok(match unfit {
        Some(_) => End::Unfit,
        None => End::Done,
    })
}

/// Shows the ranks along each axis of a mesh, and of a pipeline which part of the model is where.
///
/// # Errors
/// If the model does not fit the mesh.
pub fn show_mesh<M: Model>(job: &Job<M>, args: &ShowMeshArgs) -> anyhow::Result<End> {
    let devices = MeshArgs {
        pipeline: args.pipeline.clone(),
        ..args.axes.clone().into()
    };
    let devices = predict::costed(&devices, job, &Hardware::preset("h100")?)?;
    // Alone, nothing has to run: the mesh may be larger than this machine.
    let mesh = match launch::world()? {
        Some(_) => Mesh::open::<M>(&devices)?,
        None => Mesh::dry::<M>(&devices)?,
    };
    say!("{}", mesh.table().trim_end());
    let model = M::build(&job.config, mesh.device());
    if let Some(stages) = mesh.stages(&model)? {
        say!("\n{}", stages.trim_end());
    }
    Ok(End::Done)
}
