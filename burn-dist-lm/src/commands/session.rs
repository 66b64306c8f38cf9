//! The common part of `pretrain` and `finetune`: the model's shape, stopping on a signal, and what a run leaves behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use burn_dist::Float;
use burn_dist::checkpoint::NonFinite;
use burn_dist::clock::{Hardware, Simulation};
use burn_dist::explanation::Ask;
use burn_dist::launch::Stop;
use burn_dist::layout::Rows;
use burn_dist::schedule::Timeline;
use burn_dist::train::files::write_whole;
use burn_dist::train::metrics::{Event, Inbox};
use burn_dist::train::run::{Begin, RunFolder, RunLock};
use tracing_subscriber::layer::SubscriberExt;

use super::End;
use super::predict;
use crate::capacity::{self, Needs, TooFewRows};
use crate::checkpoints::{Described, Keeper, SoFar};
use crate::cli::{ModelArgs, Resume, TrainArgs};
use crate::data::batch::RandomTokens;
use crate::data::held_out::HeldOut;
use crate::data::rng::Rng;
use crate::data::tokenizer::Text;
use crate::hf::{self, Origin};
use crate::mesh::{Explanation, Mesh};
use crate::metrics::{RunMetrics, Wanted};
use crate::model::{Llama, LlamaConfig, Size};
use crate::note;
use crate::options;
use crate::out;
use crate::plot::{self, Curve, MemoryPlot};
use crate::processes::Processes;
use crate::report::{
    MeshSince, RankReport, Report, StepTimes, Traffic, ValidationLoss, Weights, bytes_text,
    count_text, write_json,
};
use crate::say;
use crate::schedule::Schedule;
use crate::train::{Recipe, Trace};
use crate::validation::Validation;
use crate::voice::{complain, speaks};

/// Batches of random tokens that are held out, where there is no data.
const RANDOM_BATCHES: usize = 4;

/// The model that the command line names, not yet built.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) config: LlamaConfig,
    /// The size's name, or the model's folder.
    pub(super) name: String,
    pub(super) seq: usize,
    pub(super) batch: usize,
    /// Microbatches of a step.
    pub(super) accumulate: usize,
}

/// More tokens than any row and any step has.
const SEQ_MAX: usize = 1 << 22;
const TOKENS_MAX: usize = 1 << 30;

impl Shape {
    pub(super) fn new(args: &ModelArgs) -> anyhow::Result<Self> {
        Self::of_batch(args, args.batch)
    }

    /// The model of a size, with the size's own rows and tokens of a step.
    pub(super) fn of_size(size: Size) -> Self {
        let (seq, batch) = size.default_seq_and_batch();
        Self {
            config: size.config(),
            name: size.name().to_string(),
            seq,
            batch,
            accumulate: 1,
        }
    }

    /// Does the same as [`Self::new`], with another number of rows of a step; `None` is the size's own.
    pub(super) fn of_batch(args: &ModelArgs, rows: Option<usize>) -> anyhow::Result<Self> {
        let shape = match &args.model {
            Some(dir) => Self {
                config: hf::read_config(dir)?,
                name: dir.display().to_string(),
                seq: 512,
                batch: 8,
                ..Self::of_size(args.size)
            },
            None => Self::of_size(args.size),
        };
        let batch = rows.unwrap_or(shape.batch);
        let seq = args.seq.unwrap_or(shape.seq);
        // What follows from them is counted in 64 bits.
        let tokens = batch
            .checked_mul(seq)
            .filter(|tokens| *tokens <= TOKENS_MAX);
        if seq > SEQ_MAX || tokens.is_none() {
            bail!(
                "{batch} rows of {seq} tokens are more than a step can have: give a --seq of at most {SEQ_MAX}, and a \
                 --batch with which a step has at most {TOKENS_MAX} tokens"
            );
        }
        if !batch.is_multiple_of(args.accumulate) {
            bail!(
                "--accumulate {} does not divide the {batch} rows of a step: give a --batch that is a multiple of it",
                args.accumulate
            );
        }
        if let Some(mesh) = &args.devices.forward.axes.mesh {
            let ranks = mesh.group_size(&mesh.context_axes());
            if seq < ranks {
                bail!(
                    "the mesh {mesh} splits sequences over {ranks} ranks, and a sequence has {seq} tokens: give a --seq \
                     of at least {ranks}, or cp fewer ranks"
                );
            }
        }
        Ok(Self {
            seq,
            batch,
            accumulate: args.accumulate,
            ..shape
        })
    }
}

impl Shape {
    /// Checks that each rank that takes rows of its own has some, unless all are `allowed` to compute the same.
    ///
    /// # Errors
    /// [`TooFewRows`].
    pub(super) fn check_rows(&self, mesh: &Mesh, allowed: bool) -> Result<(), TooFewRows> {
        let (rows, ranks) = (self.batch / self.accumulate, mesh.num_row_groups());
        match rows < ranks && !allowed {
            true => Err(TooFewRows {
                mesh: mesh.name(),
                rows,
                ranks,
                accumulate: self.accumulate,
            }),
            false => Ok(()),
        }
    }
}

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
            true => Mesh::traced(&devices)?,
            false => Mesh::open(&devices)?,
        };
        shape.check_rows(&mesh, args.model.repeat_rows)?;
        check_chart(args.chart.as_ref(), &mesh)?;
        let lock = match &folder {
            Some(folder) => take(folder, args, mesh.processes())?,
            None => None,
        };
        if !args.force {
            check_parameters(&shape.config, &mesh, REMEDIES)?;
        }
        // Nothing has run yet: threads, weights and data come later.
        let ask = Ask {
            hardware: args.chart.is_some().then_some(hardware),
            ..Ask::default()
        };
        let predicted = match mesh.in_host_memory() || args.memory.is_some() || args.chart.is_some()
        {
            true => {
                let dry = Mesh::dry(&devices)?;
                let rows = predict::Rows {
                    weighted,
                    packed: args.data.document_mask,
                };
                let plan = predict::step(&dry, &shape, args.model.seed, rows, &ask)?;
                let windows = [&plan.first[..], &plan.steady.memory];
                check_memory(&Needs::new(&windows, REMEDIES), &mesh, args.force)?;
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
            model: Some(Described::new(name, config)),
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
        if let Some(found) = non_finite(found, &self.mesh)? {
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
    ) -> anyhow::Result<Option<Validation<'h>>> {
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
            say!("{}", predict::table(&plan.memory).trim_end());
        }
        Ok(())
    }

    /// With `--memory`, draws what the fullest rank held, and what the plan predicted: in the process that has this
    /// rank.
    ///
    /// # Errors
    /// If the file cannot be written, or another process does not say what its ranks held.
    pub(super) fn draw_memory(&self) -> anyhow::Result<()> {
        let (Some(path), Some(plan)) = (&self.args.memory, &self.predicted) else {
            return Ok(());
        };
        let here = self.mesh.accounted();
        let peaks = here.iter().map(|(rank, held)| (*rank, held.peak.total()));
        let all = self.mesh.processes().gather(peaks.collect::<Vec<_>>())?;
        let Some((rank, _)) = all.into_iter().flatten().max_by_key(|(_, peak)| *peak) else {
            bail!("no step has run: there is no memory to draw");
        };
        let Some((_, held)) = here.iter().find(|(here, _)| *here == rank) else {
            return Ok(());
        };
        let cause = held.peak_cause.to_string();
        let title = format!(
            "{} on mesh {}: rank {rank} holds {} at most",
            self.shape.name,
            self.mesh.name(),
            bytes_text(held.peak.total())
        );
        let drawing = MemoryPlot {
            title: &title,
            held: &held.timeline,
            predicted: plan.timelines.get(rank),
            cause: &cause,
        };
        plot::write_memory(path, &drawing)?;
        out!("memory: {}", path.display());
        Ok(())
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
        let (trace, chart) = (self.save_trace(), self.save_chart());
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

    /// With `--trace`, writes what the ranks of this process did when, in a file of its own.
    fn save_trace(&self) -> anyhow::Result<()> {
        let Some(path) = &self.args.trace else {
            return Ok(());
        };
        let path = of_process(path, self.mesh.processes().process());
        let left_out = self.mesh.save_trace(&path)?;
        if left_out > 0 {
            out!("the trace shows the first steps; {left_out} later events did not fit");
        }
        out!("trace: {}", path.display());
        Ok(())
    }

    /// With `--chart`, draws when the ranks of this process worked on which microbatch, below what was planned.
    fn save_chart(&self) -> anyhow::Result<()> {
        let Some(path) = &self.args.chart else {
            return Ok(());
        };
        let path = of_process(path, self.mesh.processes().process());
        let simulations = self.predicted.iter().flat_map(|plan| &plan.simulations);
        let planned = simulations.filter_map(Simulation::pipeline).next();
        let measured = self.mesh.pipeline();
        let named = [("planned, on h100", &planned), ("measured", &measured)];
        let timelines = named
            .iter()
            .filter_map(|(name, of)| Some((*name, of.as_ref()?)));
        draw_chart(&path, &timelines.collect::<Vec<_>>())?;
        out!("chart: {}", path.display());
        Ok(())
    }
}

/// Refuses a chart of a mesh that has nothing to draw.
pub(super) fn check_chart(chart: Option<&PathBuf>, mesh: &Mesh) -> anyhow::Result<()> {
    if chart.is_some() && !mesh.has_stages() {
        bail!(
            "--chart draws stages, and the mesh {} has none: try --mesh pp=2",
            mesh.name()
        );
    }
    Ok(())
}

/// Draws timelines of stages.
pub(super) fn draw_chart(path: &Path, timelines: &[(&str, &Timeline)]) -> anyhow::Result<()> {
    let drawn = Timeline::svg_of(timelines);
    let written = write_whole(path, |to| to.write_all(drawn.as_bytes()));
    written.with_context(|| format!("cannot write the chart {}", path.display()))
}

/// The name of a file that every process writes: `trace.json`, `trace-1.json`, `trace-2.json`.
fn of_process(path: &Path, process: usize) -> PathBuf {
    if process == 0 {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{process}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
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

/// Returns which values are not finite of what all processes have read: of those that several have read, as often.
///
/// # Communication
/// Waits for the other processes.
pub(super) fn non_finite(
    here: Option<NonFinite>,
    mesh: &Mesh,
) -> anyhow::Result<Option<NonFinite>> {
    Ok(NonFinite::sum(mesh.processes().gather(here)?))
}

/// Compares what a run needs with what there is, where tensors are in the memory of the host; by `force`, what does not
/// fit is only printed.
///
/// # Communication
/// Waits for the other processes.
pub(super) fn check_memory(needs: &Needs, mesh: &Mesh, force: bool) -> anyhow::Result<()> {
    if !mesh.in_host_memory() {
        return Ok(());
    }
    match capacity::check(needs, mesh.world_size(), mesh.processes()) {
        Err(error) if force && error.is::<capacity::TooLarge>() => {
            if speaks() {
                note!("forced: {error}");
            }
            Ok(())
        }
        checked => checked,
    }
}

/// Does the same as [`check_memory`], before a step is planned: for the parameters alone. Processes that share
/// a model out unevenly know that of no machine before the plan.
pub(super) fn check_parameters(
    config: &LlamaConfig,
    mesh: &Mesh,
    remedies: &'static str,
) -> anyhow::Result<()> {
    if mesh.processes().are_several() {
        return Ok(());
    }
    let needs = Needs::of_parameters(config.num_params(), mesh.world_size(), remedies);
    check_memory(&needs, mesh, false)
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

/// Takes the folder of a run, in the process that writes.
///
/// # Communication
/// All processes learn how it ended.
fn take(
    folder: &RunFolder,
    args: &TrainArgs,
    processes: &Processes,
) -> anyhow::Result<Option<RunLock>> {
    let begin = match args.checkpoints.resumes()? {
        Resume::Never => Begin::New,
        Resume::Auto | Resume::At(_) => Begin::OrGoOn,
    };
    let lock = (processes.process() == 0).then(|| folder.lock(begin));
    processes.together(
        lock.transpose().map_err(Into::into),
        "take the folder of the run",
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_a_file_of_its_own() {
        let name = |path: &str, process| of_process(Path::new(path), process);
        assert_eq!(name("out/trace.json", 0), Path::new("out/trace.json"));
        assert_eq!(name("out/trace.json", 12), Path::new("out/trace-12.json"));
        assert_eq!(name("trace", 1), Path::new("trace-1"));
    }
}
