//! What `pretrain` and `finetune` share: the model's shape, stopping on Ctrl-C, and what a run leaves behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use burn::tensor::backend::Backend;
use burn_dist::layout::Rows;

use super::End;
use super::predict;
use crate::cli::{MeshArgs, ModelArgs, TrainArgs};
use crate::data::tokenizer::Text;
use crate::hf;
use crate::mesh::{Explanation, Mesh, TrainBackend};
use crate::model::{Llama, LlamaConfig, Size};
use crate::plot::{self, Curve, MemoryPlot};
use crate::report::{RankReport, Report, StepTimes, Traffic, bytes_text, count_text, write_json};
use crate::say;
use crate::train::{Recipe, Trace};
use crate::voice::speaks;

/// The model that the command line names, not yet built.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) config: LlamaConfig,
    /// The size's name, or the model's folder.
    pub(super) name: String,
    /// The checkpoint's id for the end of an answer.
    pub(super) eos: Option<u32>,
    pub(super) seq: usize,
    pub(super) batch: usize,
    /// Microbatches of a step.
    pub(super) accumulate: usize,
}

impl Shape {
    pub(super) fn new(args: &ModelArgs) -> anyhow::Result<Self> {
        let (config, name, eos, (seq, batch)) = match &args.model {
            Some(dir) => {
                let (config, eos) = hf::read_config(dir)?;
                (config, dir.display().to_string(), eos, (512, 8))
            }
            None => {
                let size = args.size;
                (
                    size.config(),
                    size.name().to_string(),
                    None,
                    size.default_seq_and_batch(),
                )
            }
        };
        let batch = args.batch.unwrap_or(batch);
        if !batch.is_multiple_of(args.accumulate) {
            bail!(
                "--accumulate {} does not divide the {batch} rows of a step: give a --batch that is a multiple of it",
                args.accumulate
            );
        }
        Ok(Self {
            config,
            name,
            eos,
            seq: args.seq.unwrap_or(seq),
            batch,
            accumulate: args.accumulate,
        })
    }
}

/// A training command between its start and its end.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) args: &'a TrainArgs,
    pub(super) mesh: Mesh,
    pub(super) shape: Shape,
    pub(super) stop: Arc<AtomicBool>,
    devices: MeshArgs,
}

impl<'a> Session<'a> {
    /// Checks what can be checked before work is spent, opens the mesh, and listens for Ctrl-C.
    ///
    /// `default_mesh` are the devices if the command line names none.
    pub(super) fn start(args: &'a TrainArgs, default_mesh: Option<&str>) -> anyhow::Result<Self> {
        let shape = Shape::new(&args.model)?;
        let plot = (!args.no_plot).then_some(&args.plot);
        let files = args.json.iter().chain(&args.trace).chain(&args.memory);
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
        let mut devices = args.model.devices.clone();
        if let (None, Some(axes)) = (&devices.mesh, default_mesh) {
            devices.mesh = Some(axes.parse().context("the default mesh")?);
        }
        let mesh = match args.trace {
            Some(_) => Mesh::traced(&devices)?,
            None => Mesh::open(&devices)?,
        };
        TrainBackend::seed(mesh.device(), args.model.seed);
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                // The second Ctrl-C does not wait for the step.
                std::process::exit(130);
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(Self {
            args,
            mesh,
            shape,
            stop,
            devices,
        })
    }

    /// The highest learning rate.
    pub(super) fn rate(&self) -> f64 {
        let model = &self.args.model;
        self.args.lr.unwrap_or(match model.size {
            _ if model.model.is_some() => 2e-5,
            Size::Tiny => 2e-3,
            _ => 3e-4,
        })
    }

    /// The checkpoint's tokenizer, or one trained on `texts`.
    pub(super) fn text<'t>(
        &self,
        texts: impl Iterator<Item = &'t str> + Send,
    ) -> anyhow::Result<Text> {
        match &self.args.model.model {
            Some(dir) => read_text(dir, &self.shape),
            None => Ok(Text::train(
                texts,
                self.shape.config.vocab.min(MAX_TRAINED_VOCAB),
            )?),
        }
    }

    /// The model on the mesh: with the checkpoint's weights, or random ones that are made on first use.
    pub(super) fn model(&self) -> anyhow::Result<Llama<TrainBackend>> {
        let model = self.shape.config.init::<TrainBackend>(self.mesh.device());
        let model = self.mesh.parallelize(model)?;
        match &self.args.model.model {
            Some(dir) => Ok(hf::load(model, &self.shape.config, dir)?),
            None => Ok(model),
        }
    }

    /// The rows of a step that this process has to read.
    pub(super) fn rows(&self) -> Rows {
        self.mesh.rows(self.shape.batch, self.shape.accumulate)
    }

    /// How a step is taken.
    pub(super) fn recipe(&self) -> Recipe {
        Recipe {
            accumulate: self.shape.accumulate,
            clip: self.args.clip.map(|norm| norm as f32),
        }
    }

    /// One line about the model and the devices.
    pub(super) fn introduce(&self) {
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
    }

    /// With `--memory`, plans a step before any runs, and prints what each rank will hold.
    ///
    /// # Errors
    /// If a step cannot be planned.
    pub(super) fn predict(&self, weighted: bool) -> anyhow::Result<Option<Explanation>> {
        if self.args.memory.is_none() {
            return Ok(None);
        }
        let dry = Mesh::dry(&self.devices)?;
        let plan = predict::step(&dry, &self.shape, self.args.model.seed, weighted)?;
        print!("{}", predict::table(&plan.memory));
        Ok(Some(plan))
    }

    /// With `--memory`, draws what the fullest rank held, and what the plan said.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn draw_memory(&self, plan: Option<&Explanation>) -> anyhow::Result<()> {
        let (Some(path), Some(plan)) = (&self.args.memory, plan) else {
            return Ok(());
        };
        let ranks = self.mesh.accounted();
        let fullest = ranks
            .iter()
            .enumerate()
            .max_by_key(|(_, rank)| rank.peak.total());
        let Some((rank, held)) = fullest else {
            bail!("no step has run: there is no memory to draw");
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
        say!("memory: {}", path.display());
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
        let all = self.mesh.gather((here, measured.collectives.clone()))?;
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
            size: self.shape.name.clone(),
            seed: self.args.model.seed,
            num_params: self.shape.config.num_params(),
            tokens_per_step: measured.tokens_per_step,
            interrupted: base.interrupted || trace.interrupted,
            pretrain_losses: base.losses.clone(),
            losses: trace.losses.clone(),
            tokens_per_second: measured.tokens_per_second(),
            step_ms_median: measured.step_ms_median(),
            times: StepTimes::mean(&times),
            ranks,
            collectives,
            plan: self.mesh.plan(),
            exact_match_before: None,
            exact_match: None,
        })
    }

    /// Writes what the command line asks for: the report, the plot, the model. All are tried; the first error counts.
    pub(super) fn finish(
        &self,
        report: &Report,
        model: &Llama<TrainBackend>,
        text: Option<&Text>,
    ) -> anyhow::Result<End> {
        let end = match report.interrupted {
            true => End::Interrupted,
            false => End::Done,
        };
        if !speaks() {
            if self.args.save.is_some() {
                hf::read_along(model)?;
            }
            return Ok(end);
        }
        let json = self
            .args
            .json
            .as_deref()
            .map_or(Ok(()), |path| write_json(path, report));
        let plot = if self.args.no_plot {
            Ok(())
        } else {
            draw(&self.args.plot, report)
        };
        let trace = self.args.trace.as_deref().map_or(Ok(()), |path| {
            let left_out = self.mesh.save_trace(path)?;
            if left_out > 0 {
                say!("the trace shows the first steps; {left_out} later events did not fit");
            }
            Ok(())
        });
        let saved = match (&self.args.save, text) {
            (Some(dir), Some(text)) => {
                hf::save(model, &self.shape.config, text, dir).map_err(anyhow::Error::from)
            }
            _ => Ok(()),
        };
        for (what, path, result) in [
            ("report", self.args.json.as_ref(), &json),
            ("trace", self.args.trace.as_ref(), &trace),
            (
                "plot",
                (!self.args.no_plot).then_some(&self.args.plot),
                &plot,
            ),
            ("model", self.args.save.as_ref(), &saved),
        ] {
            if let (Some(path), Ok(())) = (path, result) {
                say!("{what}: {}", path.display());
            }
        }
        json.and(trace).and(plot).and(saved)?;
        Ok(end)
    }
}

/// A tokenizer trained at the start stays small: its training grows with the vocabulary.
const MAX_TRAINED_VOCAB: usize = 2048;

/// Reads a model folder's tokenizer and compares it with the model.
pub(super) fn read_text(dir: &Path, shape: &Shape) -> anyhow::Result<Text> {
    let path = dir.join("tokenizer.json");
    let text = Text::read(&path, shape.eos)?;
    if text.vocab() > shape.config.vocab {
        bail!(
            "{} has {} tokens, and the model's embedding has {} rows: they do not belong together",
            path.display(),
            text.vocab(),
            shape.config.vocab
        );
    }
    Ok(text)
}

fn draw(path: &Path, report: &Report) -> anyhow::Result<()> {
    let base = Curve {
        name: "pretrain",
        losses: &report.pretrain_losses,
    };
    let main = Curve {
        name: report.command,
        losses: &report.losses,
    };
    let curves: Vec<Curve<'_>> = [base, main]
        .into_iter()
        .filter(|curve| !curve.losses.is_empty())
        .collect();
    plot::write(
        path,
        &format!("{} on mesh {}", report.size, report.mesh),
        &curves,
    )
}
