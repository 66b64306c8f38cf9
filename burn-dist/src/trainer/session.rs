//! A training command between its start and its end: what is checked before work is spent, and what a run leaves.

mod end;
mod one_phase;

pub use one_phase::{HeldOutRows, OnePhase};

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Context, bail};
use tracing_subscriber::layer::SubscriberExt;

use super::args::{Resume, StepArgs, TrainArgs};
use super::batch::BatchSource;
use super::capacity::{Needs, check_on, check_parameters};
use super::checkpoints::{Described, Keeper, SoFar, non_finite, take};
use super::exit::End;
use super::job::Job;
use super::mesh::{Explanation, Mesh};
use super::metrics::{RunMetrics, Wanted};
use super::model::Model;
use super::options;
use super::outputs::check_chart;
use super::plot;
use super::predict::{self, memory_table};
use super::progress::Progress;
use super::report::count_text;
use super::run::{self, Phase, Trace};
use super::schedule::Schedule;
use super::step::Recipe;
use super::validation::Validation;
use super::voice::{note, say, speaks};
use crate::Float;
use crate::checkpoint::NonFinite;
use crate::clock::Hardware;
use crate::explanation::Ask;
use crate::launch::Stop;
use crate::layout::Rows;
use crate::train::files::write_whole;
use crate::train::metrics::{Event, Inbox};
use crate::train::run::{RunFolder, RunLock};

/// A training command between its start and its end.
#[derive(Debug)]
pub struct Session<'a, M: Model> {
    /// The model and the rows of a step.
    pub job: &'a Job<M>,
    /// The devices, and how rows are cut.
    pub step: &'a StepArgs,
    /// How to train, and what to keep.
    pub args: &'a TrainArgs,
    /// The devices.
    pub mesh: Mesh,
    /// Set by Ctrl-C and SIGTERM.
    pub stop: Stop,
    num_params: usize,
    /// The plan of a step; known where it is shown, or compared with the memory there is.
    predicted: Option<Explanation>,
    /// The folder of the run.
    folder: Option<RunFolder>,
    /// The log, until the files of figures are open; in the process that writes them.
    inbox: RefCell<Option<Inbox>>,
    /// The lock of the run's folder, in the process that writes.
    lock: Option<RunLock>,
}

/// A phase of a session.
pub struct Part<'v, B> {
    /// The state before it.
    pub before: SoFar,
    /// How many steps it has.
    pub steps: usize,
    /// The rows that are held out.
    pub validation: Option<Validation<'v, B>>,
    /// Shows how far it is, in place of the usual display.
    pub progress: Option<Progress>,
}

impl<'a, M: Model> Session<'a, M> {
    /// Checks what can be checked before work is spent, opens the mesh, compares the memory that a step needs with what
    /// there is, and listens for Ctrl-C and SIGTERM.
    ///
    /// `default_mesh` are the devices if the command line names none.
    ///
    /// # Errors
    /// What cannot be, for people.
    pub fn start(
        job: &'a Job<M>,
        step: &'a StepArgs,
        args: &'a TrainArgs,
        default_mesh: Option<&str>,
    ) -> anyhow::Result<Self> {
        let folder = args.run.run.as_ref().map(RunFolder::at);
        check_files(args)?;
        // Before anything is logged; what is logged until the files are open waits in the queue.
        let inbox = folder.as_ref().map(|_| Inbox::default());
        if let Some(inbox) = &inbox {
            let subscriber = tracing_subscriber::registry().with(inbox.layer().filtered());
            tracing::subscriber::set_global_default(subscriber)
                .context("two runs in one program")?;
        }
        let output = &args.output;
        let mut devices = step.devices.clone();
        let axes = &mut devices.forward.axes;
        if let (None, Some(default)) = (&axes.mesh, default_mesh) {
            axes.mesh = Some(default.parse().context("the default mesh")?);
        }
        let hardware = Hardware::preset("h100")?;
        let mut devices = predict::costed(&devices, job, &hardware)?;
        devices.hardware.clone_from(&args.run.hardware);
        let mesh = match output.trace.is_some() || output.chart.is_some() {
            true => Mesh::traced::<M>(&devices)?,
            false => Mesh::open::<M>(&devices)?,
        };
        job.rows.check(&mesh, step.repeat_rows)?;
        check_chart(output.chart.as_ref(), &mesh)?;
        let lock = match &folder {
            Some(folder) => take(folder, args.checkpoints.resumes()?, mesh.processes())?,
            None => None,
        };
        let num_params = mesh.num_params(&M::build(&job.config, mesh.device()))?;
        let remedies = M::WORDS.remedies;
        if !args.force {
            check_parameters(num_params, &mesh, remedies)?;
        }
        // Nothing has run yet: threads, weights and data come later.
        let ask = Ask {
            hardware: output.chart.is_some().then_some(hardware),
            ..Ask::default()
        };
        let is_shown = output.memory.is_some() || output.chart.is_some();
        let predicted = match mesh.in_host_memory() || is_shown {
            true => {
                let dry = Mesh::dry::<M>(&devices)?;
                let plan = predict::planned(&dry, job, job.rows, job.rows.accumulate, &ask)?;
                job.check_flops(plan.steady.model_flops)?;
                let windows = [&plan.first[..], &plan.steady.memory];
                check_on(&Needs::new(&windows, remedies), &mesh, args.force)?;
                Some(plan.steady)
            }
            false => None,
        };
        mesh.device().seed(step.seed);
        let stop = Stop::on_signals().context("cannot listen for Ctrl-C and SIGTERM")?;
        Ok(Self {
            job,
            step,
            args,
            mesh,
            stop,
            num_params,
            predicted,
            folder,
            inbox: inbox.filter(|_| lock.is_some()).into(),
            lock,
        })
    }

    /// Introduces the run, opens its files, and does `work` with them; notes how that has ended.
    ///
    /// # Errors
    /// Those of the files, and of `work`.
    pub fn run(
        &self,
        check: impl FnOnce() -> anyhow::Result<()>,
        work: impl FnOnce(Keeper, &RunMetrics) -> anyhow::Result<End>,
    ) -> anyhow::Result<End> {
        self.introduce()?;
        check()?;
        let keeper = self.keeper()?;
        let metrics = self.metrics(&keeper)?;
        let end = work(keeper, &metrics);
        metrics.close(end)
    }

    /// The beginning of a phase.
    pub fn phase(&self, phase: &str) -> SoFar {
        SoFar {
            model: Some(Described::new::<M>(&self.job.name, &self.job.config)),
            ..SoFar::of(phase)
        }
    }

    /// The learning rates of a phase.
    pub fn schedule(&self, steps: usize) -> Schedule {
        self.args.schedule.of(self.job.peak, steps)
    }

    /// How many steps the run has: as the command line says, in steps or in epochs, or else `default`. `rows` counts
    /// those of an epoch; `None`, if the data has no end.
    ///
    /// # Errors
    /// If there is no epoch, or its rows cannot be counted.
    pub fn steps(
        &self,
        default: usize,
        rows: impl FnOnce() -> anyhow::Result<Option<u64>>,
    ) -> anyhow::Result<usize> {
        let schedule = &self.args.schedule;
        let Some(epochs) = schedule.epochs else {
            return Ok(schedule.steps.unwrap_or(default));
        };
        let Some(rows) = rows()? else {
            bail!("--epochs needs data that ends, and this has no end: give --steps");
        };
        let steps = (rows * epochs as u64).div_ceil(self.job.rows.batch as u64);
        say!(
            "{epochs} epoch{} of {} rows: {} steps",
            if epochs == 1 { "" } else { "s" },
            count_text(rows),
            count_text(steps)
        );
        Ok(usize::try_from(steps)?)
    }

    /// The checkpoints of the run.
    ///
    /// # Errors
    /// As [`Keeper::open`].
    fn keeper(&self) -> anyhow::Result<Keeper> {
        let args = &self.args.checkpoints;
        let default = self.folder.as_ref().map(RunFolder::checkpoints);
        let root = args.checkpoint.as_deref().or(default.as_deref());
        let keeper = Keeper::open(args, root, self.mesh.device())?;
        // The process that writes knows what the run has written.
        let writes = self.folder.as_ref().filter(|_| self.lock.is_some());
        let done = keeper.resumed().map(|so_far| so_far.steps() as u64);
        let checked = writes.map(|folder| folder.check_goes_on(done)).transpose();
        let checked = checked.map_err(anyhow::Error::from);
        let later = self
            .mesh
            .processes()
            .together(checked, "go on with the run")?;
        if let (Some(step), Resume::Auto) = (later.flatten(), args.resumes()?) {
            note!("warning: a checkpoint of step {step} was saved, and is not there any more");
        }
        Ok(keeper)
    }

    /// Prints which options differ from those by which the run was trained before, if it goes on, and keeps its
    /// options, with those that were `chosen` for it, in the folder of the run and beside its checkpoints: as
    /// config.toml, or config-N.toml if it goes on after step N; and among the figures.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save_config(
        &self,
        keeper: &mut Keeper,
        metrics: &RunMetrics,
        chosen: &[(&str, usize)],
    ) -> anyhow::Result<()> {
        let run = self.folder.as_ref().map(RunFolder::path);
        let checkpoints = self.args.checkpoints.checkpoint.as_deref();
        if run.or(checkpoints).is_none() {
            return Ok(());
        }
        let mut resolved = self.args.resolved.clone();
        resolved.choose("mesh", self.mesh.name());
        for (option, value) in chosen.iter().chain(&[("batch", self.job.rows.batch)]) {
            resolved.choose(option, value);
        }
        resolved.choose("lr", self.schedule(1).peak);
        let done = keeper.resumed().map(SoFar::steps);
        for changed in keeper.trains_by(options::of(&resolved))? {
            let next = done.map_or(1, |done| done + 1);
            say!("from step {next} on, {changed}");
            metrics.event(
                Event::new("changed")
                    .with("step", next)
                    .with("what", changed),
            );
        }
        if !speaks() {
            return Ok(());
        }
        let text = resolved.to_toml(&self.args.program.versioned())?;
        metrics.text("configuration", done.unwrap_or(0), &text);
        let name = match done {
            Some(step) => format!("config-{step}.toml"),
            None => "config.toml".to_string(),
        };
        for folder in run.into_iter().chain(checkpoints) {
            let path = folder.join(&name);
            let written = write_whole(&path, |to| to.write_all(text.as_bytes()));
            written
                .with_context(|| format!("cannot write the configuration {}", path.display()))?;
        }
        Ok(())
    }

    /// The files of figures, which go on where the checkpoint of `keeper` was saved.
    ///
    /// # Errors
    /// As [`RunMetrics::open`].
    fn metrics(&self, keeper: &Keeper) -> anyhow::Result<RunMetrics> {
        let Some(folder) = &self.folder else {
            return Ok(RunMetrics::none());
        };
        let run = &self.args.run;
        let peak = run.peak_tflops.or_else(|| {
            let products = run.hardware.as_ref()?.products;
            Some(match self.step.devices.forward.param_dtype {
                Float::F32 => products.f32_tflops,
                _ => products.f16_tflops,
            })
        });
        let done = keeper.resumed().map_or(0, SoFar::steps);
        let rows = Wanted {
            every: run.metrics_every.unwrap_or(Wanted::ALL.every),
            tflops_per_rank: peak,
            ..Wanted::ALL
        };
        let inbox = self.inbox.take();
        let metrics = RunMetrics::open(folder, inbox, done, rows, self.mesh.processes())?;
        let begin = Event::new("begin")
            .with("step", done)
            .with("version", self.args.program.version)
            .with("mesh", self.mesh.name())
            .with("size", self.job.name.clone())
            .with("parameters", self.num_params);
        metrics.event(begin);
        say!(
            "figures: {}, tensorboard --logdir {}",
            folder.metrics().display(),
            folder.tensorboard().display()
        );
        if peak.is_none() {
            say!(
                "no share of the peak among them (MFU): --peak-tflops or --hardware says what a rank can do"
            );
        }
        Ok(metrics)
    }

    /// The model on the mesh, with random weights that are made on first use; if the job has a folder of weights, and
    /// the run does not go on from a checkpoint, with those.
    ///
    /// # Errors
    /// If it does not fit the mesh, or cannot be read.
    pub fn model(&self, keeper: &mut Keeper) -> anyhow::Result<M> {
        let model = M::build(&self.job.config, self.mesh.device());
        let model = self.mesh.parallelize(model)?;
        let folder = self.job.weights.as_ref();
        let Some(folder) = folder.filter(|_| keeper.resumed().is_none()) else {
            return Ok(model);
        };
        let (model, found) = (folder.load)(model, &folder.path, self.mesh.device())?;
        if let Some(what) = warn_of_non_finite(found, &folder.path, &self.mesh)? {
            keeper.loaded(what);
        }
        Ok(model)
    }

    /// The rows of a step that this process has to read.
    pub fn rows(&self) -> Rows {
        self.mesh
            .rows(self.job.rows.batch, self.job.rows.accumulate)
    }

    /// Returns what asks for the loss of the first of so many batches that are held out, as often and of as many as the
    /// command line says.
    ///
    /// # Errors
    /// If `source` cannot say where it is.
    pub fn validation<'h>(
        &self,
        source: Box<dyn BatchSource<Batch = M::Batch> + 'h>,
        batches: usize,
    ) -> anyhow::Result<Validation<'h, M::Batch>> {
        let run = &self.args.run;
        let batches = run
            .validate_batches
            .map_or(batches, |most| most.min(batches));
        Validation::new(source, batches, run.validate_every)
    }

    /// How a step is taken.
    pub fn recipe(&self) -> Recipe {
        Recipe {
            accumulate: self.job.rows.accumulate,
            clip: self.args.optimizer.clip.map(|norm| norm as f32),
            optimizer: self.args.optimizer.config(),
        }
    }

    /// Trains for the steps of a phase, writes checkpoints and figures, and says what became of the data.
    ///
    /// # Errors
    /// As [`run::run`].
    pub fn train(
        &self,
        model: M,
        part: Part<'_, M::Batch>,
        source: &mut dyn BatchSource<Batch = M::Batch>,
        keeper: &mut Keeper,
        metrics: &RunMetrics,
    ) -> anyhow::Result<(M, Trace)> {
        let (mesh, steps) = (&self.mesh, part.steps);
        let usual = || {
            let progress = Progress::new(&part.before.phase, steps, mesh.world_size());
            progress.log_every(self.args.run.log_every)
        };
        let phase = Phase {
            schedule: self.schedule(steps),
            recipe: self.recipe(),
            progress: &part.progress.unwrap_or_else(usual),
            stop: &self.stop,
            before: &part.before,
            validation: part.validation,
            metrics,
        };
        let trained = run::run(model, source, phase, mesh.device(), mesh, keeper)?;
        if let Some(summary) = source.summary() {
            say!("{summary}");
        }
        Ok(trained)
    }

    /// One line about the model and the devices, and what else is to be known before the run; with `--memory`, what
    /// each rank will hold.
    fn introduce(&self) -> anyhow::Result<()> {
        let ranks = self.mesh.world_size();
        let model = M::build(&self.job.config, self.mesh.device());
        let units = match self.mesh.num_units(&model)? {
            0 => String::new(),
            units => format!(" in {units} {}", M::UNITS),
        };
        say!(
            "{}: {} parameters{units}, {} a step, mesh {} ({ranks} rank{})",
            self.job.name,
            count_text(self.num_params as u64),
            self.job.rows,
            self.mesh.name(),
            if ranks == 1 { "" } else { "s" },
        );
        if let Some(advice) = self.mesh.advice() {
            say!("{advice}");
        }
        if let Some(stages) = self.mesh.stages(&model)? {
            say!("{}", stages.trim_end());
        }
        if let Some(folder) = &self.job.weights {
            say!("{}", unverified(&folder.path));
        }
        if self.args.output.memory.is_some()
            && let Some(plan) = &self.predicted
        {
            say!("{}", memory_table(&plan.memory).trim_end());
        }
        Ok(())
    }
}

/// Checks that the files which the command line names can be written, as far as their names tell.
fn check_files(args: &TrainArgs) -> anyhow::Result<()> {
    let output = &args.output;
    let plot = output.plot.as_ref();
    let files = output
        .json
        .iter()
        .chain(&output.trace)
        .chain(&output.memory);
    for path in files.chain(&output.chart).chain(plot) {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!(
                "cannot write {}: there is no folder {}",
                path.display(),
                folder.display()
            );
        }
    }
    for path in plot.into_iter().chain(&output.memory) {
        plot::check_name(path)?;
    }
    Ok(())
}

/// Returns the warning about weights that come from a folder.
pub fn unverified(dir: &Path) -> String {
    format!(
        "weights from {}, unverified: no checksums come with them, so a changed byte is not noticed",
        dir.display()
    )
}

/// Warns, in the process that speaks, of values of a folder that are not finite; returns the warning.
///
/// # Communication
/// The processes tell each other what they have read.
/// # Errors
/// If another process is late or has ended.
pub fn warn_of_non_finite(
    found: Option<NonFinite>,
    dir: &Path,
    mesh: &Mesh,
) -> anyhow::Result<Option<String>> {
    let found = non_finite(found, mesh.processes())?;
    let what = found.map(|found| format!("the weights of {} have {found}", dir.display()));
    if let Some(what) = what.as_ref().filter(|_| speaks()) {
        note!("warning: {what}");
    }
    Ok(what)
}
