//! The command `evaluate`: the loss of a model as it is, on rows of data.

use anyhow::bail;
use serde::Serialize;

use super::args::{EvaluateArgs, StepArgs};
use super::batch::BatchSource;
use super::capacity::{Needs, check_on, check_parameters};
use super::checkpoints::{Described, SoFar, Stored};
use super::exit::End;
use super::job::Job;
use super::mesh::Mesh;
use super::model::Model;
use super::predict;
use super::report::count_text;
use super::session::{unverified, warn_of_non_finite};
use super::validation::Validation;
use super::voice::{note, say, speaks};
use crate::layout::Rows;
use crate::train::run::RunFolder;

/// A model with its weights on the devices, to be evaluated.
#[derive(Debug)]
pub struct Evaluation<'a, M: Model> {
    job: &'a Job<M>,
    args: &'a EvaluateArgs,
    /// The devices.
    pub mesh: Mesh,
    /// How far the run was that the weights are of, if they are a checkpoint's.
    pub so_far: Option<SoFar>,
    model: M,
}

/// The figures that `--json` prints.
#[derive(Debug, Serialize)]
struct Evaluated<'a> {
    /// The size's name, or the model's folder.
    size: &'a str,
    /// Steps of the checkpoint.
    step: Option<usize>,
    mesh: String,
    batches: usize,
    /// Positions that a loss was asked of.
    positions: u64,
    loss: f32,
    perplexity: f64,
    seconds: f64,
}

impl<'a, M: Model> Evaluation<'a, M> {
    /// Opens the devices, and reads the weights: of a checkpoint, if the command line names one, or else of the folder
    /// of the job.
    ///
    /// # Errors
    /// If there are no weights, or they cannot be read; if the model does not fit the devices.
    pub fn start(
        job: &'a Job<M>,
        step: &'a StepArgs,
        args: &'a EvaluateArgs,
    ) -> anyhow::Result<Self> {
        let of_run = args.run.as_ref().map(RunFolder::at);
        let of_run = of_run.as_ref().map(RunFolder::checkpoints);
        let root = args.checkpoint.as_deref().or(of_run.as_deref());
        if root.is_none() && job.weights.is_none() {
            bail!(
                "there are no weights to evaluate: give --run or --checkpoint, whose checkpoint has some, or the folder of \
                 a model{}",
                M::WORDS.model
            );
        }
        let mesh = Mesh::open::<M>(&step.devices)?;
        job.rows.check(&mesh, step.repeat_rows)?;
        let model = M::build(&job.config, mesh.device());
        let remedies = M::WORDS.remedies;
        if !args.force {
            check_parameters(mesh.num_params(&model)?, &mesh, remedies)?;
        }
        if mesh.in_host_memory() {
            let plan = predict::held_out(&Mesh::dry::<M>(&step.devices)?, job)?;
            check_on(&Needs::new(&[&plan.memory], remedies), &mesh, args.force)?;
        }
        let model = mesh.parallelize(model)?;
        let (model, so_far) = match (root, &job.weights) {
            (Some(root), _) => {
                let stored = Stored::open(root, args.step, mesh.device())?;
                let described = Described::new::<M>(&job.name, &job.config);
                let model = stored.model(model, &described)?;
                (model, Some(stored.so_far))
            }
            (None, Some(folder)) => {
                let (model, found) = (folder.load)(model, &folder.path, mesh.device())?;
                if speaks() {
                    note!("{}", unverified(&folder.path));
                }
                warn_of_non_finite(found, &folder.path, &mesh)?;
                (model, None)
            }
            (None, None) => unreachable!("there is one of them"),
        };
        Ok(Self {
            job,
            args,
            mesh,
            so_far,
            model,
        })
    }

    /// The rows of a batch that this process has to read.
    pub fn rows(&self) -> Rows {
        let rows = self.job.rows;
        self.mesh.rows(rows.batch, rows.accumulate)
    }

    /// Asks for the loss of the first batches, and prints it: of `batches`, or of as many as the command line says.
    ///
    /// # Errors
    /// If a batch cannot be read, or the mesh has stopped.
    pub fn run(
        &self,
        source: Box<dyn BatchSource<Batch = M::Batch> + '_>,
        batches: usize,
    ) -> anyhow::Result<End> {
        let batches = self
            .args
            .validate_batches
            .map_or(batches, |most| most.min(batches));
        let mut validation = Validation::new(source, batches, None)?;
        let model = self.model.valid();
        let found = validation.loss(&model, self.job.rows.accumulate, &self.mesh)?;
        let evaluated = Evaluated {
            size: &self.job.name,
            step: self.so_far.as_ref().map(SoFar::steps),
            mesh: self.mesh.name(),
            batches,
            positions: found.positions,
            loss: found.loss,
            perplexity: f64::from(found.loss).exp(),
            seconds: found.time.as_secs_f64(),
        };
        if self.args.json {
            say!("{}", serde_json::to_string(&evaluated)?);
            return Ok(End::Done);
        }
        let step = evaluated.step;
        say!(
            "{}{}: loss {:.4}, perplexity {:.4}, over {} positions in {batches} batch{} of {}",
            evaluated.size,
            step.map_or_else(String::new, |step| format!(" after step {step}")),
            evaluated.loss,
            evaluated.perplexity,
            count_text(evaluated.positions),
            if batches == 1 { "" } else { "es" },
            self.job.rows,
        );
        Ok(End::Done)
    }
}
