//! Whole programs: a model by options of its own, whose rows are made from their numbers.
//!
//! ```no_run
//! # use std::{ops::Range, process::ExitCode};
//! # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
//! # use burn_dist::trainer::{args::StepArgs, batch::Column, model::{Loss, Model, Tensors}, program::Program};
//! # use burn_dist::Parallelize;
//! use burn_dist::trainer::task::{self, Rows, Task};
//! use clap::Args;
//!
//! # #[derive(Module, Debug, Parallelize)]
//! # struct Map { map: Linear }
//! # impl Model for Map {
//! #     type Config = usize;
//! #     type Batch = Column<f32, 2>;
//! #     fn build(width: &usize, device: &Device) -> Self {
//! #         Self { map: LinearConfig::new(*width, *width).init(device) }
//! #     }
//! #     fn loss(&self, rows: Tensors<Self>, parts: usize) -> Loss {
//! #         ((self.map.forward(rows.clone()) - rows).powi_scalar(2).mean() / parts as f64).into()
//! #     }
//! #     fn held_out(&self, rows: Tensors<Self>) -> [Tensor<1>; 2] {
//! #         let count = rows.ones_like().sum();
//! #         [(self.map.forward(rows.clone()) - rows).powi_scalar(2).sum(), count]
//! #     }
//! #     fn facts(width: &usize) -> Vec<(&'static str, String)> { vec![("width", width.to_string())] }
//! # }
//! /// The model.
//! #[derive(Debug, Args)]
//! struct Options {
//!     /// Its width.
//!     #[arg(long, default_value_t = 8)]
//!     width: usize,
//! }
//!
//! impl Task for Options {
//!     type Model = Map;
//!     const STEPS: usize = 100;
//!     const BATCH: usize = 16;
//!     const PEAK: f64 = 1e-2;
//!
//!     fn config(&self, _: &StepArgs) -> anyhow::Result<usize> { Ok(self.width) }
//!     fn name(&self) -> String { "map".into() }
//!     fn rows(&self, _seed: u64) -> Rows<Column<f32, 2>> {
//!         let width = self.width;
//!         Rows::new("numbers", move |numbers: Range<usize>| {
//!             let values = numbers.flat_map(|number| vec![(number % 7) as f32; width]);
//!             Column::new(values.collect(), &[width])
//!         })
//!     }
//! }
//!
//! // Commands train, evaluate, explain, simulate, config and mesh.
//! fn main() -> ExitCode {
//!     task::main::<Options>(Program { name: "map", version: "1", about: "Trains a map" })
//! }
//! ```

mod definition;
mod line;

pub use definition::{Rows, Task, UNSEEN};
pub use line::Line;

use std::process::ExitCode;

use anyhow::Context;
use burn_core::module::Module;

use super::args::{MeshArgs, StepArgs, TrainArgs};
use super::batch::BatchSource;
use super::command_line::{CommandLine, show_config};
use super::evaluate::Evaluation;
use super::exit::{End, exit};
use super::explain::{explain, show_mesh};
use super::job::{Job, StepRows};
use super::model::Model;
use super::program::Program;
use super::progress::Progress;
use super::session::{OnePhase, Session};
use super::simulate::{self, simulate};
use super::voice::say;
use crate::mesh::MeshShape;
use line::Command;

/// Does what the command line asks of a program; returns the code that it exits with. A command line that cannot be
/// read ends the program.
pub fn main<T: Task>(program: Program) -> ExitCode {
    exit(run(Line::<T>::read(program)))
}

/// Runs what the command line asks for.
///
/// # Errors
/// Why it could not be done, for people.
fn run<T: Task>(line: Line<T>) -> anyhow::Result<End> {
    match line.command {
        Command::Train { task, step, args } => train(&task, &on::<T>(*step)?, &args),
        Command::Evaluate { task, step, args } => {
            let step = on::<T>(*step)?;
            let job = job(&task, &step, step.batch)?;
            let evaluation = Evaluation::start(&job, &step, &args)?;
            evaluation.run(Box::new(held_out(&task, &step, &job)), T::HELD_OUT)
        }
        Command::Explain { task, step, args } => {
            let step = on::<T>(*step)?;
            let job = job(&task, &step, step.batch)?;
            let mesh = step.devices.forward.axes.mesh.clone();
            let mesh = mesh.map_or_else(|| MeshShape::parse("1"), Ok)?;
            explain(&job, &step, &args, &task.about(&job, &mesh)?)
        }
        Command::Simulate { task, step, args } => {
            let step = on::<T>(*step)?;
            simulate(
                &job(&task, &step, simulate::batch(&args, &step))?,
                &step,
                &args,
            )
        }
        Command::Config { args, .. } => show_config(&args),
        Command::Mesh { task, args } => {
            let step = StepArgs::on(MeshArgs {
                pipeline: args.pipeline.clone(),
                ..args.axes.clone().into()
            });
            show_mesh(&job(&task, &step, None)?, &args)
        }
    }
}

/// Returns the job, with `batch` rows of a step.
fn job<T: Task>(task: &T, step: &StepArgs, batch: Option<usize>) -> anyhow::Result<Job<T::Model>> {
    let config = task.config(step)?;
    let make = task.rows(step.seed).make;
    Ok(Job {
        config,
        name: task.name(),
        weights: None,
        rows: StepRows::new(batch.unwrap_or(T::BATCH), step.accumulate, task.each())?,
        peak: T::PEAK,
        sample: Box::new(move |rows| Ok(make(0..rows))),
    })
}

/// Names the devices where the command line names none.
fn on<T: Task>(mut step: StepArgs) -> anyhow::Result<StepArgs> {
    let axes = &mut step.devices.forward.axes;
    if let (None, Some(default)) = (&axes.mesh, T::MESH) {
        axes.mesh = Some(default.parse().context("the default mesh")?);
    }
    Ok(step)
}

/// The rows that are held out.
fn held_out<T: Task>(
    task: &T,
    step: &StepArgs,
    job: &Job<T::Model>,
) -> impl BatchSource<Batch = <T::Model as Model>::Batch> + use<T> {
    let rows = task.rows(step.seed).batches(job.rows.batch);
    rows.starting_at(UNSEEN)
}

fn train<T: Task>(task: &T, step: &StepArgs, args: &TrainArgs) -> anyhow::Result<End> {
    let job = job(task, step, step.batch)?;
    let session = Session::start(&job, step, args, None)?;
    let introduce = || {
        if let Some(text) = task.introduction(&job) {
            say!("{text}");
        }
        Ok(())
    };
    session.run(introduce, |keeper, metrics| {
        let steps = session.steps(T::STEPS, || Ok(None))?;
        let held_out = args.run.validate_every.map(|_| {
            let rows: Box<dyn BatchSource<Batch = _>> = Box::new(held_out(task, step, &job));
            (rows, T::HELD_OUT)
        });
        let every = args.run.log_every.unwrap_or(T::LOG_EVERY);
        let phase = OnePhase {
            name: "train",
            steps,
            chosen: &[],
            source: &mut task.rows(step.seed).batches(job.rows.batch),
            held_out,
            progress: task
                .line(&job)
                .map(|line| Progress::lines(steps, every, line)),
        };
        session.one_phase(phase, keeper, metrics, |model, trace| {
            match trace.interrupted {
                true => Ok(()),
                false => task.end(&model.valid(), &session.mesh.inference_device()),
            }
        })
    })
}
