//! The decoder as a model of the trainer, and the commands.

use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use burn_dist::mesh::MeshShape;
use burn_dist::trainer::args::TrainArgs;
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::evaluate::Evaluation;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::explain::explain;
use burn_dist::trainer::job::{Job, StepRows};
use burn_dist::trainer::model::{Loss, Model, Tensors};
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::Trace;
use burn_dist::trainer::session::{Part, Session};
use burn_dist::trainer::simulate::{batch, simulate};
use burn_dist::trainer::step::{self, Norm};
use burn_dist::trainer::voice::say;
use burn_dist::{Parallelize, Plan};

use crate::cli::{Cli, Command, ModelArgs};
use crate::data::Batch;
use crate::model::{Config, Decoder};

/// Steps without `--steps`.
const STEPS: usize = 200;
/// Batches that are held out, with numbers that training does not reach.
const HELD_OUT: (usize, usize) = (4, 1 << 40);

/// The figures of a step, before its update.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The loss that is trained on.
    pub loss: f32,
    /// Mean cross entropy.
    pub cross_entropy: f32,
    /// 1 if experts are chosen alike.
    pub balance: f32,
    /// Mean squared log-sum-exp of the router's logits.
    pub z: f32,
    /// Pairs of a token and a choice that were dropped, of all blocks.
    pub dropped: f32,
    /// Pairs that each expert of the first block was chosen for.
    pub load: Vec<f32>,
}

/// Names of the figures before the load.
const NAMES: [&str; 4] = ["cross_entropy", "balance", "z", "dropped"];

impl Figures {
    /// Returns the figures beside a loss.
    pub fn of(loss: f32, figures: &[f32]) -> Self {
        let (of_batch, load) = figures.split_at(NAMES.len());
        Self {
            loss,
            cross_entropy: of_batch[0],
            balance: of_batch[1],
            z: of_batch[2],
            dropped: of_batch[3],
            load: load.to_vec(),
        }
    }

    /// Reads the figures that [`step()`] returns; waits for the step.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn read(figures: Tensor<1>) -> anyhow::Result<Self> {
        let values: Vec<f32> = figures.try_into_data()?.iter::<f32>().collect();
        Ok(Self::of(values[0], &values[1..]))
    }
}

impl Model for Decoder {
    type Config = Config;
    type Batch = Batch;

    const UNITS: &'static str = "blocks";
    const AXES: &'static [&'static str] = &["ep", "tp"];

    fn build(config: &Config, device: &Device) -> Self {
        config.init(device)
    }

    /// The plan of its attributes, but with experts over the axes that the configuration names, if it names some.
    fn plan_on(&self, _: &MeshShape) -> anyhow::Result<Plan> {
        let over = self
            .config()
            .and_then(|config| config.experts_over.as_deref());
        Ok(match over {
            Some(axes) => self.plan().axis(axes).experts("blocks.*.mixture.experts"),
            None => self.plan(),
        })
    }

    fn figures(&self) -> Vec<String> {
        let experts = 0..self.config().map_or(0, |config| config.experts);
        let load = experts.map(|expert| format!("load/{expert}"));
        NAMES.map(str::to_string).into_iter().chain(load).collect()
    }

    fn loss(&self, [tokens, next]: Tensors<Self>, parts: usize) -> Loss {
        let losses = self.losses(tokens, next);
        let mean = |value: Tensor<1>| match parts {
            1 => value,
            _ => value / parts as f64,
        };
        let figures = [
            mean(losses.cross_entropy),
            mean(losses.balance),
            mean(losses.z),
            losses.dropped,
            losses.load,
        ];
        Loss {
            value: mean(losses.total),
            figures: Some(Tensor::cat(figures.map(Tensor::inner).into(), 0)),
        }
    }

    fn held_out(&self, [tokens, next]: Tensors<Self>) -> [Tensor<1>; 2] {
        let ([rows, seq], device) = (tokens.dims(), tokens.device());
        let count = Tensor::<1>::ones([1], &device) * (rows * seq) as f64;
        let entropy = self.losses(tokens, next).cross_entropy;
        [entropy * count.clone(), count]
    }

    fn facts(config: &Config) -> Vec<(&'static str, String)> {
        config.facts()
    }
}

/// Takes one optimizer step; returns the model and its figures, not yet read.
pub fn step(
    model: Decoder,
    optim: &mut ModuleOptimizer,
    batch: &Batch,
    rate: f64,
    device: &Device,
) -> (Decoder, Tensor<1>) {
    let parts = vec![batch.on(device)];
    let (model, taken) = step::step(model, optim, parts, Norm::Unknown, rate);
    let all = [Some(taken.loss), taken.figures];
    (model, Tensor::cat(all.into_iter().flatten().collect(), 0))
}

/// Does what the command line asks for.
///
/// # Errors
/// If sizes do not fit, a rank fails, or the loss is no longer a number.
pub fn run(cli: &Cli) -> anyhow::Result<End> {
    match &cli.command {
        Command::Train { model, args } => train(model, args),
        Command::Evaluate { model, args } => {
            let (job, (step, _)) = (model.job(model.step.batch)?, model.step()?);
            let evaluation = Evaluation::start(&job, &step, args)?;
            evaluation.run(Box::new(held_out(model, &job)), HELD_OUT.0)
        }
        Command::Explain { model, args } => {
            let (job, (step, mesh)) = (model.job(model.step.batch)?, model.step()?);
            explain(&job, &step, args, &about(&job.config, job.rows, &mesh)?)
        }
        Command::Simulate { model, args } => {
            let (step, _) = model.step()?;
            simulate(&model.job(batch(args, &step))?, &step, args)
        }
    }
}

/// The rows that are held out.
fn held_out(model: &ModelArgs, job: &Job<Decoder>) -> impl BatchSource<Batch = Batch> + use<> {
    model.rows(job.rows.batch).starting_at(HELD_OUT.1)
}

fn train(model: &ModelArgs, args: &TrainArgs) -> anyhow::Result<End> {
    let (job, (step, _)) = (model.job(model.step.batch)?, model.step()?);
    let session = Session::start(&job, &step, args, None)?;
    let (config, rows) = (job.config.clone(), job.rows);
    let tell = || {
        say!("{}", slots(&config, rows));
        Ok(())
    };
    session.run(tell, |mut keeper, metrics| {
        let steps = session.steps(STEPS, || Ok(None))?;
        session.save_config(&mut keeper, metrics, &[("steps", steps)])?;
        let validation = args
            .run
            .validate_every
            .map(|_| session.validation(Box::new(held_out(model, &job)), HELD_OUT.0));
        let every = args.run.log_every.unwrap_or(20);
        let config = config.clone();
        let progress = Progress::lines(steps, every, move |shown| {
            let line = line(&Figures::of(shown.loss, shown.figures), &config, rows);
            let (step, speed) = (shown.done, shown.tokens_per_second);
            format!("step {step:>5}  {line}  {speed:.0} tokens/s")
        });
        let part = Part {
            before: session.phase("train"),
            steps,
            validation: validation.transpose()?,
            progress: Some(progress),
        };
        let decoder = session.model(&mut keeper)?;
        let (_, trace) = session.train(
            decoder,
            part,
            &mut model.rows(rows.batch),
            &mut keeper,
            metrics,
        )?;
        let report = session.report("train", &Trace::default(), &trace)?;
        let drawn = session.draw_memory();
        session.finish(&report, [drawn], &mut keeper)
    })
}

/// The slots of experts, and what the empty ones cost.
fn slots(config: &Config, rows: StepRows) -> String {
    let tokens = rows.each / config.groups;
    format!(
        "{} experts, {} of them for each token, {} slot(s) of each for every {tokens} tokens: {:.2} times the work of the \
         chosen pairs",
        config.experts,
        config.top_k,
        config.slots(tokens),
        config.padding(rows.each)
    )
}

/// The part of a step that is tokens sent to experts and back.
fn about(config: &Config, rows: StepRows, mesh: &MeshShape) -> anyhow::Result<String> {
    let axes = match &config.experts_over {
        Some(over) => mesh.group(over)?,
        None => mesh.expert_axes(),
    };
    let parts = mesh.group_size(&axes);
    let bytes = config.exchanged_bytes(rows.batch, rows.each, parts, size_of::<f32>());
    Ok(format!(
        "{}, over {parts} rank(s)\ntokens on their way: {bytes} bytes over all ranks for each of dispatch and combine, \
         forward and backward, in each of {} block(s)",
        slots(config, rows),
        config.layers
    ))
}

/// The figures of a step, as text: of the load, the share that each expert of the first block was chosen for.
fn line(figures: &Figures, config: &Config, rows: StepRows) -> String {
    let pairs = (rows.batch * rows.each * config.top_k) as f32;
    let dropped = figures.dropped / (pairs * config.layers as f32);
    let load = figures
        .load
        .iter()
        .map(|chosen| format!("{:.0}", 100.0 * chosen / pairs));
    format!(
        "loss {:.4}  cross entropy {:.4}  balance {:.3}  dropped {:.1} %  load {} %",
        figures.loss,
        figures.cross_entropy,
        figures.balance,
        100.0 * dropped,
        load.collect::<Vec<_>>().join("/")
    )
}
