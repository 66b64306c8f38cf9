//! The common part of `pretrain` and `finetune`: the model's shape, stopping on a signal, and what a run leaves behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use burn_dist::Float;
use burn_dist::clock::Hardware;
use burn_dist::explanation::Ask;
use burn_dist::launch::Stop;
use burn_dist::layout::Rows;
use burn_dist::train::files::write_whole;
use burn_dist::train::metrics::{Event, Inbox};
use burn_dist::train::run::{RunFolder, RunLock};
use burn_dist::trainer::args::Resume;
use burn_dist::trainer::capacity::{Needs, check_on, check_parameters};
use burn_dist::trainer::checkpoints::{Described, Keeper, SoFar, non_finite, take};
use burn_dist::trainer::exit::End;
use burn_dist::trainer::mesh::{Explanation, Mesh};
use burn_dist::trainer::metrics::{RunMetrics, Wanted};
use burn_dist::trainer::outputs::{check_chart, draw_memory, save_chart, save_trace};
use burn_dist::trainer::plot::{self, Curve};
use burn_dist::trainer::predict::memory_table;
use burn_dist::trainer::report::{
    MeshSince, RankReport, StepTimes, Traffic, ValidationLoss, count_text, write_json,
};
use burn_dist::trainer::run::Trace;
use burn_dist::trainer::schedule::Schedule;
use burn_dist::trainer::step::Recipe;
use burn_dist::trainer::validation::Validation;
use burn_dist::trainer::voice::{complain, note, say, speaks};
use tracing_subscriber::layer::SubscriberExt;

use super::predict;
use super::shape::Shape;
use crate::cli::TrainArgs;
use crate::data::batch::{Batch, RandomTokens};
use crate::data::held_out::HeldOut;
use crate::data::rng::Rng;
use crate::data::tokenizer::Text;
use crate::hf::{self, Origin};
use crate::model::{Llama, Size};
use crate::options;
use crate::report::{Report, Weights};

/// Batches of random tokens that are held out, where there is no data.
const RANDOM_BATCHES: usize = 4;

/// A training command between its start and its end.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) args: &'a TrainArgs,
    pub(super) mesh: Mesh,
    pub(super) shape: Shape,
    pub(super) stop: Stop,
    /// The plan of a step; known where it is shown, or compared with the memory there is.
    predicted: Option<Explanation>,
    /// The files that the model brought along, if it came from a folder.
    origin: Option<Origin>,
    /// The folder of the run.
    pub(super) folder: Option<RunFolder>,
    /// The log, until the files of figures are open; in the process that writes them.
    inbox: RefCell<Option<Inbox>>,
    /// The lock of the run's folder, in the process that writes.
    lock: Option<RunLock>,
}

impl<'a> Session<'a> {
    /// Checks what can be checked before work is spent, opens the mesh, compares the memory that a step needs with what
    /// there is, and listens for Ctrl-C and SIGTERM.
    ///
    /// `default_mesh` are the devices if the command line names none; rows are `weighted` if they are questions and
    /// answers.
    pub(super) fn start(
        args: &'a TrainArgs,
        default_mesh: Option<&str>,
        weighted: bool,
    ) -> anyhow::Result<Self> {
        let shape = Shape::new(&args.model)?;
        let folder = args.run.run.as_ref().map(RunFolder::at);
        let plot = args.plot.as_ref();
        let files = args.json.iter().chain(&args.trace).chain(&args.memory);
        let files = files.chain(&args.chart);
        for path in files.chain(plot) {
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
        for path in plot.into_iter().chain(&args.memory) {
            plot::check_name(path)?;
        }
        // Before anything is logged; what is logged until the files are open waits in the queue.
        let inbox = folder.as_ref().map(|_| Inbox::default());
        if let Some(inbox) = &inbox {
            let subscriber = tracing_subscriber::registry().with(inbox.layer().filtered());
            tracing::subscriber::set_global_default(subscriber)
                .context("two runs in one program")?;
        }
        let origin = args.model.model.as_deref();
        let origin = origin.map(Origin::read).transpose()?;
        let mut devices = args.model.devices.clone();
        let axes = &mut devices.forward.axes;
        if let (None, Some(default)) = (&axes.mesh, default_mesh) {
            axes.mesh = Some(default.parse().context("the default mesh")?);
        }
        let hardware = Hardware::preset("h100")?;
        let mut devices = predict::costed(&devices, &shape, args.model.seed, &hardware)?;
        devices.hardware.clone_from(&args.run.hardware);
        let mesh = match args.trace.is_some() || args.chart.is_some() {
            true => Mesh::traced::<Llama>(&devices)?,
            false => Mesh::open::<Llama>(&devices)?,
        };
        shape.check_rows(&mesh, args.model.repeat_rows)?;
        check_chart(args.chart.as_ref(), &mesh)?;
        let lock = match &folder {
            Some(folder) => take(folder, args.checkpoints.resumes()?, mesh.processes())?,
            None => None,
        };
        if !args.force {
            check_parameters(shape.config.num_params(), &mesh, REMEDIES)?;
        }
        // Nothing has run yet: threads, weights and data come later.
        let ask = Ask {
            hardware: args.chart.is_some().then_some(hardware),
            ..Ask::default()
        };
        let predicted = match mesh.in_host_memory() || args.memory.is_some() || args.chart.is_some()
        {
            true => {
                let dry = Mesh::dry::<Llama>(&devices)?;
                let rows = predict::Rows {
                    weighted,
                    packed: args.data.document_mask,
                };
                let plan = predict::step(&dry, &shape, args.model.seed, rows, &ask)?;
                let windows = [&plan.first[..], &plan.steady.memory];
                check_on(&Needs::new(&windows, REMEDIES), &mesh, args.force)?;
                Some(plan.steady)
            }
            false => None,
        };
        mesh.device().seed(args.model.seed);
        let stop = Stop::on_signals().context("cannot listen for Ctrl-C and SIGTERM")?;
        Ok(Self {
            args,
            mesh,
            shape,
            stop,
            predicted,
            origin,
            folder,
            inbox: inbox.filter(|_| lock.is_some()).into(),
            lock,
        })
    }

    /// The beginning of a phase.
    pub(super) fn phase(&self, phase: &str) -> SoFar {
        let Shape { name, config, .. } = &self.shape;
        SoFar {
            model: Some(Described::new::<Llama>(name, config)),
            ..SoFar::of(phase)
        }
    }

    /// The learning rates of a phase.
    pub(super) fn schedule(&self, steps: usize) -> Schedule {
        let model = &self.args.model;
        let peak = match model.size {
            _ if model.model.is_some() => 2e-5,
            Size::Tiny => 2e-3,
            _ => 3e-4,
        };
        self.args.schedule.of(peak, steps)
    }

    /// The checkpoint's tokenizer, or one trained on `texts`: on all of them, in every process.
    pub(super) fn text(
        &self,
        texts: impl FnOnce() -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Text> {
        match &self.args.model.model {
            Some(dir) => {
                let text = read_text(dir, &self.shape)?;
                say!("{}", text.description());
                Ok(text)
            }
            None => Ok(Text::train(
                texts()?.iter().map(String::as_str),
                self.shape.config.vocab.min(MAX_TRAINED_VOCAB),
            )?),
        }
    }

    /// The checkpoints of the run.
    ///
    /// # Errors
    /// As [`Keeper::open`].
    pub(super) fn keeper(&self) -> anyhow::Result<Keeper> {
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
    /// options, with the steps and rates that were chosen for it, in the folder of the run and beside its checkpoints:
    /// as config.toml, or config-N.toml if it goes on after step N.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn save_config(
        &self,
        keeper: &mut Keeper,
        metrics: &RunMetrics,
        steps: &[(&str, usize)],
    ) -> anyhow::Result<()> {
        let run = self.folder.as_ref().map(RunFolder::path);
        let checkpoints = self.args.checkpoints.checkpoint.as_deref();
        if run.or(checkpoints).is_none() {
            return Ok(());
        }
        let mut resolved = self.args.resolved.clone();
        let Shape { batch, seq, .. } = self.shape;
        resolved.choose("mesh", self.mesh.name());
        for (option, value) in steps.iter().chain(&[("batch", batch), ("seq", seq)]) {
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
    pub(super) fn metrics(&self, keeper: &Keeper) -> anyhow::Result<RunMetrics> {
        let Some(folder) = &self.folder else {
            return Ok(RunMetrics::none());
        };
        let run = &self.args.run;
        let peak = run.peak_tflops.or_else(|| {
            let products = run.hardware.as_ref()?.products;
            Some(match self.args.model.devices.forward.param_dtype {
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
            .with("size", self.shape.name.clone())
            .with("parameters", self.shape.config.num_params());
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

    /// The model on the mesh: with the weights of a folder, or random ones that are made on first use; without any, if
    /// the run goes on from a checkpoint.
    pub(super) fn model(&self, keeper: &mut Keeper) -> anyhow::Result<Llama> {
        let (config, device) = (&self.shape.config, self.mesh.device());
        let model = self.mesh.parallelize(config.init(device))?;
        let dir = self.args.model.model.as_ref();
        let Some(dir) = dir.filter(|_| keeper.resumed().is_none()) else {
            return Ok(model);
        };
        let (model, found) = hf::load_reported(model, config, dir, device)?;
        if let Some(found) = non_finite(found, self.mesh.processes())? {
            let what = format!("the weights of {} have {found}", dir.display());
            if speaks() {
                note!("warning: {what}");
            }
            keeper.loaded(what);
        }
        Ok(model)
    }

    /// The rows of a step that this process has to read.
    pub(super) fn rows(&self) -> Rows {
        self.mesh.rows(self.shape.batch, self.shape.accumulate)
    }

    /// Returns the held-out texts for validation, if the command line asks for it.
    ///
    /// # Errors
    /// If there is nothing to hold out.
    pub(super) fn validation<'h>(
        &self,
        held_out: Option<HeldOut<'h>>,
    ) -> anyhow::Result<Option<Validation<'h, Batch>>> {
        let every = self.args.run.validate_every;
        if let Some(held_out) = held_out {
            let batches = held_out.num_batches();
            return Validation::new(Box::new(held_out), batches, every).map(Some);
        }
        if every.is_none() {
            return Ok(None);
        }
        if !self.args.data.data.is_empty() {
            bail!("--validate-every needs rows that are held out: give --validate");
        }
        let source = RandomTokens {
            batch: self.shape.batch,
            seq: self.shape.seq,
            vocab: self.shape.config.vocab,
            // Training draws from another stream.
            rng: Rng::new(self.args.model.seed, 5),
            held: self.rows(),
        };
        Validation::new(Box::new(source), RANDOM_BATCHES, every).map(Some)
    }

    /// How a step is taken.
    pub(super) fn recipe(&self) -> Recipe {
        Recipe {
            accumulate: self.shape.accumulate,
            clip: self.args.optimizer.clip.map(|norm| norm as f32),
            optimizer: self.args.optimizer.config(),
        }
    }

    /// One line about the model and the devices, and what else is to be known before the run; with `--memory`, what
    /// each rank will hold.
    ///
    /// # Errors
    /// If the model cannot be laid out over the mesh.
    pub(super) fn introduce(&self) -> anyhow::Result<()> {
        let Shape {
            config,
            name,
            seq,
            batch,
            ..
        } = &self.shape;
        let ranks = self.mesh.world_size();
        say!(
            "{name}: {} parameters in {} layers, {batch} x {seq} tokens a step, mesh {} ({ranks} rank{})",
            count_text(config.num_params() as u64),
            config.num_layers,
            self.mesh.name(),
            if ranks == 1 { "" } else { "s" },
        );
        if let Some(advice) = self.mesh.advice() {
            say!("{advice}");
        }
        let model = config.init(self.mesh.device());
        if let Some(stages) = self.mesh.stages(&model)? {
            say!("{}", stages.trim_end());
        }
        if let Some(dir) = &self.args.model.model {
            say!("{}", unverified(dir));
        }
        if self.args.memory.is_some()
            && let Some(plan) = &self.predicted
        {
            say!("{}", memory_table(&plan.memory).trim_end());
        }
        Ok(())
    }

    /// With `--memory`, draws what the fullest rank held.
    ///
    /// # Errors
    /// As [`draw_memory`].
    pub(super) fn draw_memory(&self) -> anyhow::Result<()> {
        match (&self.args.memory, &self.predicted) {
            (Some(path), Some(plan)) => draw_memory(path, &self.shape.name, &self.mesh, plan),
            _ => Ok(()),
        }
    }

    /// A report of what is known after training, of the ranks of all processes.
    ///
    /// # Errors
    /// If another process does not say what its ranks did.
    pub(super) fn report(
        &self,
        command: &'static str,
        base: &Trace,
        trace: &Trace,
    ) -> anyhow::Result<Report> {
        let measured = if trace.losses.is_empty() { base } else { trace };
        let here = measured.ranks.iter().zip(&measured.times);
        let here: Vec<_> = here
            .map(|(memory, times)| RankReport {
                memory: memory.clone(),
                times: times.clone(),
            })
            .collect();
        let here = (here, measured.collectives.clone());
        let all = self.mesh.processes().gather(here)?;
        let mut collectives: BTreeMap<String, Traffic> = BTreeMap::new();
        for (kind, traffic) in all.iter().flat_map(|(_, collectives)| collectives) {
            collectives.entry(kind.clone()).or_default().add(traffic);
        }
        let ranks: Vec<RankReport> = all.into_iter().flat_map(|(ranks, _)| ranks).collect();
        let times: Vec<_> = ranks.iter().map(|rank| rank.times.clone()).collect();
        Ok(Report {
            command,
            world_size: self.mesh.world_size(),
            mesh: self.mesh.name(),
            meshes: match trace.meshes.is_empty() {
                true => &base.meshes,
                false => &trace.meshes,
            }
            .iter()
            .map(|(first_step, mesh)| MeshSince {
                first_step: *first_step,
                mesh: mesh.clone(),
            })
            .collect(),
            size: self.shape.name.clone(),
            seed: self.args.model.seed,
            weights: self.args.model.model.as_ref().map(|dir| Weights {
                from: dir.display().to_string(),
                verified: false,
            }),
            num_params: self.shape.config.num_params(),
            tokens_per_step: measured.tokens_per_step,
            interrupted: base.interrupted || trace.interrupted,
            pretrain_losses: base.losses.clone(),
            losses: trace.losses.clone(),
            validation_losses: trace
                .validation
                .iter()
                .map(|&(step, loss)| ValidationLoss { step, loss })
                .collect(),
            tokens_per_second: measured.tokens_per_second(),
            step_ms_median: measured.step_ms_median(),
            times: StepTimes::mean(&times),
            ranks,
            collectives,
            plan: self.mesh.plan(),
            redundancy: self.mesh.redundancy(),
            exact_match_before: None,
            exact_match: None,
        })
    }

    /// With `--save`, writes the model.
    ///
    /// # Communication
    /// All processes read all parameters, and learn how it ended.
    /// # Errors
    /// If a parameter cannot be read, or a file not be written.
    pub(super) fn save(&self, model: &Llama, text: Option<&Text>) -> anyhow::Result<()> {
        let (Some(dir), Some(text)) = (&self.args.save, text) else {
            return Ok(());
        };
        let (config, origin) = (&self.shape.config, self.origin.as_ref());
        if let Some(found) = hf::save(model, config, text, origin, dir, self.mesh.device())? {
            note!("warning: the model in {} has {found}", dir.display());
        }
        say!("model: {}", dir.display());
        Ok(())
    }

    /// Writes what else the command line asks for: the report, the trace, the plot. All are tried, and all errors are
    /// printed, those of what has been `tried` already too; the first one is returned.
    pub(super) fn finish(
        &self,
        report: &Report,
        tried: impl IntoIterator<Item = anyhow::Result<()>>,
        keeper: &mut Keeper,
    ) -> anyhow::Result<End> {
        let folder = self.folder.as_ref();
        let json = self.args.json.clone();
        let json = match json.or(folder.map(RunFolder::report)) {
            Some(path) if speaks() => {
                let path = &path;
                write_json(path, report).inspect(|()| say!("report: {}", path.display()))
            }
            _ => Ok(()),
        };
        let (args, mesh) = (self.args, &self.mesh);
        let trace = args
            .trace
            .as_ref()
            .map_or(Ok(()), |path| save_trace(path, mesh));
        let planned = self.predicted.as_ref();
        let chart = args.chart.as_ref();
        let chart = chart.map_or(Ok(()), |path| save_chart(path, mesh, planned));
        let path = self.args.plot.clone().or(folder.map(RunFolder::plot));
        let plot = match &path.unwrap_or_else(|| "loss.png".into()) {
            _ if self.args.no_plot || !speaks() => Ok(()),
            path => draw(path, report).inspect(|()| say!("plot: {}", path.display())),
        };
        let results = [json, trace, chart, plot].into_iter().chain(tried);
        let mut errors = results.filter_map(Result::err);
        let first = errors.next();
        errors.for_each(|error| complain(&error));
        if let Some(first) = first {
            return Err(first);
        }
        // Said by its saves already; what is returned decides the exit code.
        keeper.ended()?;
        if let (true, Some(how_to_resume)) = (report.interrupted, keeper.how_to_resume()) {
            say!("{how_to_resume}");
        }
        // Whoever was asked after the last step has done all.
        let code = self.stop.exit_code().filter(|_| report.interrupted);
        Ok(code.map_or(End::Done, End::Interrupted))
    }
}

/// Settings that need less memory than a training step that does not fit.
const REMEDIES: &str = "fewer ranks on it (a smaller --mesh, or more machines), a smaller --batch or --seq, \
                        --accumulate, --activation-checkpoint full, or a smaller model";

/// Returns the warning about weights that come from a folder.
pub(super) fn unverified(dir: &Path) -> String {
    format!(
        "weights from {}, unverified: no checksums come with them, so a changed byte is not noticed",
        dir.display()
    )
}

/// A tokenizer trained at the start stays small: its training grows with the vocabulary.
const MAX_TRAINED_VOCAB: usize = 2048;

/// Reads a model folder's tokenizer and compares it with the model.
pub(super) fn read_text(dir: &Path, shape: &Shape) -> anyhow::Result<Text> {
    let path = dir.join("tokenizer.json");
    let text = Text::read(&path, &hf::read_tokens(dir)?)?;
    let rows = shape.config.vocab;
    if text.vocab() > rows {
        bail!(
            "{} has {} tokens, and the model's embedding has {rows} rows: they do not belong together",
            path.display(),
            text.vocab(),
        );
    }
    if let Some(id) = text.ends().iter().find(|id| **id as usize >= rows) {
        bail!(
            "answers of the model in {} end with id {id}, and its embedding has {rows} rows: correct eos_token_id",
            dir.display(),
        );
    }
    Ok(text)
}

fn draw(path: &Path, report: &Report) -> anyhow::Result<()> {
    let validation = report.validation_losses.iter();
    let validation: Vec<(usize, f32)> = validation.map(|held| (held.step, held.loss)).collect();
    let base = Curve {
        name: "pretrain",
        losses: &report.pretrain_losses,
        validation: &[],
    };
    let main = Curve {
        name: report.command,
        losses: &report.losses,
        validation: &validation,
    };
    let curves: Vec<Curve<'_>> = [base, main]
        .into_iter()
        .filter(|curve| !curve.losses.is_empty())
        .collect();
    plot::write(path, &title(report), &curves)
}

/// The model, and the meshes it was trained on: `tiny on mesh fsdp=2, from step 21 on mesh tp=2`.
fn title(report: &Report) -> String {
    let on = report.meshes.iter().map(|since| match since {
        MeshSince {
            first_step: 1,
            mesh,
        } => format!("on mesh {mesh}"),
        MeshSince { first_step, mesh } => format!("from step {first_step} on mesh {mesh}"),
    });
    format!("{} {}", report.size, on.collect::<Vec<_>>().join(", "))
}
