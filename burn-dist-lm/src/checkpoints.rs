//! Checkpoints of a run: what is saved when, and how a run goes on.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn_dist::checkpoint::{
    CheckpointError, Checkpointer, Keep, Saved, Saving, State, StateError,
};
use burn_dist::train::metrics::Event;
use serde::{Deserialize, Serialize};

use crate::cli::{CheckpointArgs, Resume};
use crate::data::batch::{BatchSource, Position};
use crate::lost::Lost;
use crate::model::{Llama, LlamaConfig};
use crate::note;
use crate::options::{self, Options};
use crate::say;
use crate::voice::speaks;

/// The name of the value of a checkpoint that has the options by which it was trained.
const OPTIONS: &str = "options";

/// How far a run is, besides its weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SoFar {
    /// The phase: pretrain or finetune.
    pub phase: String,
    /// Losses of the phase before this one, if there was one.
    pub before: Vec<f32>,
    /// Losses of this one; as many as it has done steps.
    pub losses: Vec<f32>,
    /// Where the next batch begins.
    pub position: Option<Position>,
    /// The share of questions right before the phase, if any were asked.
    pub exact_match: Option<f64>,
    /// Losses on what is held out, each after so many steps of this phase.
    #[serde(default)]
    pub validation: Vec<(usize, f32)>,
    /// The meshes of the run, each with the first of its steps, of all phases and counted from 1. None are known of
    /// steps before the first of these.
    #[serde(default)]
    pub meshes: Vec<(usize, String)>,
    /// The model, if it is known.
    #[serde(default)]
    pub model: Option<Described>,
}

/// A model by its name and what tells it from others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// The size, or the folder that it came from.
    pub name: String,
    /// Names and values.
    pub facts: Vec<(String, String)>,
}

impl Described {
    /// Describes a model of this name.
    pub fn new(name: &str, config: &LlamaConfig) -> Self {
        let facts = config.facts().into_iter();
        Self {
            name: name.to_string(),
            facts: facts
                .map(|(what, value)| (what.to_string(), value))
                .collect(),
        }
    }

    /// Refuses another model than this one, which a run was begun with.
    fn check(&self, other: &Self) -> anyhow::Result<()> {
        let value = |of: &Self, what: &str| {
            let found = of.facts.iter().find(|(name, _)| name == what);
            found.map_or("nothing".to_string(), |(_, value)| value.clone())
        };
        let mut differences = Vec::new();
        for (what, found) in &other.facts {
            let expected = value(self, what);
            if expected != *found {
                differences.push(format!("{what} {found} instead of {expected}"));
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        bail!(
            "it was begun with the model {}, and goes on with {}, which has {} (--size, --model)",
            self.name,
            other.name,
            differences.join(", ")
        )
    }
}

impl SoFar {
    /// The beginning of a phase.
    pub fn of(phase: &str) -> Self {
        Self {
            phase: phase.to_string(),
            ..Self::default()
        }
    }

    /// Steps of all phases that are done.
    pub fn steps(&self) -> usize {
        self.before.len() + self.losses.len()
    }

    /// Notes the mesh of the steps from here on.
    pub fn go_on(&mut self, mesh: &str) {
        let next = self.steps() + 1;
        // What no step was done on is no mesh of the run.
        self.meshes.retain(|(first, _)| *first < next);
        if self.meshes.last().is_none_or(|(_, last)| last != mesh) {
            self.meshes.push((next, mesh.to_string()));
        }
    }
}

/// A checkpoint that was not saved; those before it are whole.
#[derive(thiserror::Error)]
#[error("cannot save the checkpoint of step {step} in {}: {source}", root.display())]
pub struct SaveFailed {
    root: PathBuf,
    step: u64,
    source: StateError,
}

burn_dist_mesh::debug_by_message!(SaveFailed);

/// The checkpoints of a run, if it keeps any.
pub struct Keeper {
    kept: Option<Kept>,
    /// The report on weights that were loaded and are not finite.
    loaded: Option<String>,
}

struct Kept {
    checkpoints: Checkpointer,
    root: PathBuf,
    every: usize,
    /// The checkpoint that the run goes on from, until its phase has begun.
    resumed: Option<(Saved, SoFar)>,
    /// The options by which it is trained.
    options: Options,
    saving: Option<(u64, Saving<(), StateError>)>,
    /// Why the last save failed, if it did.
    failed: Option<SaveFailed>,
}

impl Keeper {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self {
            kept: None,
            loaded: None,
        }
    }

    /// Opens the folder of the checkpoints, which no other program has then, and what the run goes on from.
    ///
    /// # Communication
    /// All processes open it together.
    /// # Errors
    /// If another program has the folder; if it holds another run's checkpoints, or cannot be read; if what the run is
    /// to go on from is not there, is damaged, or has values that are not finite.
    pub fn open(
        args: &CheckpointArgs,
        root: Option<&Path>,
        device: &Device,
    ) -> anyhow::Result<Self> {
        let Some(root) = root else {
            return Ok(Self::none());
        };
        let unusable = || format!("cannot keep checkpoints in {}", root.display());
        let checkpoints = Checkpointer::at(root, device)?.keep(Keep {
            last: NonZeroUsize::new(args.keep).unwrap_or(NonZeroUsize::MIN),
            every: None,
        });
        checkpoints.lock().with_context(unusable)?;
        check_writable(root).with_context(unusable)?;
        let resumed = resumed(&checkpoints, args.resumes()?, root)?;
        Ok(Self {
            kept: Some(Kept {
                checkpoints,
                root: root.to_path_buf(),
                every: args.every,
                resumed,
                options: Options::new(),
                saving: None,
                failed: None,
            }),
            loaded: None,
        })
    }

    /// Takes down the options by which the run is trained from now on; returns what differs from those by which it was
    /// so far.
    ///
    /// # Errors
    /// If the checkpoint's cannot be read.
    pub fn trains_by(&mut self, options: Options) -> anyhow::Result<Vec<String>> {
        let Some(kept) = &mut self.kept else {
            return Ok(Vec::new());
        };
        let before = match &kept.resumed {
            Some((saved, _)) => match saved.value::<Options>(OPTIONS) {
                // Of a version that did not keep them.
                Err(StateError::NoSuch { .. }) => Options::new(),
                options => options?,
            },
            None => Options::new(),
        };
        kept.options = options;
        Ok(options::differences(&before, &kept.options))
    }

    /// Takes down that weights were loaded with values that are not finite: a sentence without its end.
    pub fn loaded(&mut self, what: String) {
        self.loaded = Some(what);
    }

    /// Waits for a save in progress, and says why a run of this loss cannot go on; returns what is to be noted
    /// of the save, too.
    pub fn lost(&mut self, lost: Lost) -> (Lost, Vec<Event>) {
        let loaded = self.loaded.clone();
        let Some(kept) = &mut self.kept else {
            return (Lost { loaded, ..lost }, Vec::new());
        };
        // The loss is what the run ends with; of the save, warnings are told.
        let events = kept.wait().ok().flatten();
        let good = kept.checkpoints.checkpoints().good_before(u64::MAX);
        let good = good.ok().flatten();
        (
            Lost {
                loaded,
                good,
                ..lost
            },
            Vec::from_iter(events),
        )
    }

    /// Returns the state that the run goes on from.
    pub fn resumed(&self) -> Option<&SoFar> {
        let resumed = self.kept.as_ref()?.resumed.as_ref();
        resumed.map(|(_, progress)| progress)
    }

    /// Returns whether a checkpoint is to be saved after so many steps of a phase, or at its end.
    pub fn is_due(&self, done: usize, is_last: bool) -> bool {
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| is_last || done.is_multiple_of(kept.every))
    }

    /// Goes on with the phase of `fresh`, if the run was left in it: the model, the optimizer and the source of batches
    /// are then those of the checkpoint.
    ///
    /// # Errors
    /// If one of them does not fit.
    pub fn enter(
        &mut self,
        fresh: SoFar,
        model: Llama,
        optim: ModuleOptimizer,
        source: &mut dyn BatchSource,
    ) -> anyhow::Result<(Llama, ModuleOptimizer, SoFar)> {
        let Some(kept) = &mut self.kept else {
            return Ok((model, optim, fresh));
        };
        let is_here = |(_, left): &mut (Saved, SoFar)| left.phase == fresh.phase;
        let Some((saved, progress)) = kept.resumed.take_if(is_here) else {
            return Ok((model, optim, fresh));
        };
        let what = || {
            let root = kept.root.display();
            format!(
                "cannot go on with {root}: give the model, the data, --seq and --seed that the run was begun with"
            )
        };
        if let (Some(expected), Some(found)) = (&progress.model, &fresh.model) {
            expected.check(found).with_context(what)?;
        }
        let explained = |error: StateError| {
            let damage = damage(&kept.checkpoints, &saved, &error);
            anyhow::Error::from(error).context(damage.unwrap_or_else(what))
        };
        let model = saved.module("model", model).map_err(explained)?;
        let optim = saved.optimizer("optimizer", optim, &model);
        let optim = optim.map_err(explained)?;
        if let Some(position) = &progress.position {
            source.resume(position).with_context(what)?;
        }
        saved.restore_random()?;
        if let Some(found) = saved.checkpoint().manifest().non_finite() {
            let step = saved.step();
            self.loaded = Some(format!("the checkpoint of step {step} has {found}"));
        }
        // Steps that are done again are saved again.
        for (step, path) in kept.checkpoints.set_aside_after(Some(saved.step()))? {
            say!(
                "the checkpoint of step {step} is set aside: {}",
                path.display()
            );
        }
        Ok((model, optim, progress))
    }

    /// Saves in the background; at the end of a phase (`is_last`), waits for it. What becomes of the save is known at
    /// the next one, and printed then: training goes on, since the disk may have room again by then. [`Self::ended`]
    /// says whether the last one failed. Returns what is to be noted of all that.
    ///
    /// # Errors
    /// If the mesh has stopped, or the state cannot be saved at all.
    pub fn save(
        &mut self,
        model: &Llama,
        optim: &ModuleOptimizer,
        so_far: &SoFar,
        is_last: bool,
    ) -> anyhow::Result<Vec<Event>> {
        let Some(kept) = &mut self.kept else {
            return Ok(Vec::new());
        };
        let mut events = Vec::from_iter(kept.wait()?);
        let state = State::new()
            .module("model", model)
            .optimizer("optimizer", optim, model)
            .value("so far", so_far)
            .value(OPTIONS, &kept.options);
        let step = so_far.steps() as u64;
        match kept.checkpoints.save_in_background(step, state) {
            Ok(saving) => kept.saving = Some((step, saving)),
            Err(source) => events.push(kept.after(step, Err(source))?),
        }
        if is_last {
            events.extend(kept.wait()?);
        }
        Ok(events)
    }

    /// Says whether the last checkpoint is there.
    ///
    /// # Errors
    /// [`SaveFailed`], if it was not saved.
    pub fn ended(&mut self) -> anyhow::Result<()> {
        match self.kept.as_mut().and_then(|kept| kept.failed.take()) {
            Some(failed) => Err(failed.into()),
            None => Ok(()),
        }
    }

    /// How to go on with a run that was stopped.
    pub fn how_to_resume(&self) -> Option<String> {
        let root = &self.kept.as_ref()?.root;
        Some(format!(
            "the run is in {}: go on with --resume auto",
            root.display()
        ))
    }
}

impl Kept {
    /// Waits for a save in progress.
    fn wait(&mut self) -> anyhow::Result<Option<Event>> {
        match self.saving.take() {
            Some((step, saving)) => self.after(step, saving.wait()).map(Some),
            None => Ok(None),
        }
    }

    /// Takes down how a save has ended. Every process gets to know the same.
    fn after(&mut self, step: u64, saved: Result<(), StateError>) -> anyhow::Result<Event> {
        let failed = match saved {
            Ok(()) => {
                self.failed = None;
                let event = Event::new("checkpoint").with("step", step);
                return Ok(match self.non_finite(step) {
                    Some(found) => event.with("non_finite", found),
                    None => event,
                });
            }
            Err(source) => SaveFailed {
                root: self.root.clone(),
                step,
                source,
            },
        };
        // What has nothing to do with files will not be otherwise the next time.
        if !matches!(
            failed.source,
            StateError::Checkpoint(_) | StateError::Elsewhere { .. }
        ) {
            let what = failed.to_string();
            return Err(anyhow::Error::from(failed.source).context(what));
        }
        let event = Event::new("checkpoint_failed")
            .with("step", step)
            .with("reason", failed.to_string());
        if speaks() {
            note!("warning: {failed}; earlier ones are whole, and the next is tried in its time");
        }
        self.failed = Some(failed);
        Ok(event)
    }
}

impl Kept {
    /// Tells of a checkpoint that was saved with values that are not finite, in the process that speaks; returns what
    /// they are.
    fn non_finite(&self, step: u64) -> Option<String> {
        let checkpoints = self.checkpoints.checkpoints();
        // It is whole; who cannot read it now is told so when it is needed.
        let saved = speaks().then(|| checkpoints.open(step).ok()).flatten()?;
        let found = saved.manifest().non_finite()?.to_string();
        let good = match checkpoints.good_before(step) {
            Ok(Some(good)) => format!("; that of step {good} has none, and stays beside it"),
            _ => String::new(),
        };
        note!("warning: the checkpoint of step {step} has {found}{good}");
        Some(found)
    }
}

/// Opens what a run goes on from.
fn resumed(
    checkpoints: &Checkpointer,
    resume: Resume,
    root: &Path,
) -> anyhow::Result<Option<(Saved, SoFar)>> {
    if speaks() {
        for passed in checkpoints.checkpoints().newest()?.passed_over {
            note!("warning: {passed}; it is passed over");
        }
    }
    let unreadable = || format!("cannot read the checkpoints in {}", root.display());
    let saved = match resume {
        Resume::Never => {
            if let Some(step) = checkpoints.newest()? {
                bail!(
                    "{} has checkpoints up to step {step}: go on from there with --resume auto, or choose another \
                     folder",
                    root.display()
                );
            }
            return Ok(None);
        }
        Resume::At(step) => checkpoints.open(step).with_context(|| {
            let steps = checkpoints.checkpoints().steps().unwrap_or_default();
            let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
            let steps = match steps.is_empty() {
                true => "none".to_string(),
                false => format!("those of steps {}", steps.join(", ")),
            };
            let root = root.display();
            format!("cannot go on from the checkpoint of step {step} in {root}, which has {steps}")
        })?,
        Resume::Auto => match checkpoints.latest() {
            Ok(Some(saved)) => saved,
            Ok(None) => {
                say!(
                    "no checkpoint in {}: the run begins with step 1",
                    root.display()
                );
                return Ok(None);
            }
            Err(error) => {
                let newest = checkpoints.checkpoints().newest();
                let step = newest.ok().and_then(|newest| newest.step);
                let earlier = step.map(|step| earlier(checkpoints, step));
                let what = format!("{}{}", unreadable(), earlier.unwrap_or_default());
                return Err(anyhow::Error::from(error).context(what));
            }
        },
    };
    let (step, found) = (saved.step(), saved.checkpoint().manifest().non_finite());
    match (found, resume) {
        (Some(found), Resume::Auto) => bail!(
            "the newest checkpoint in {}, of step {step}, has {found}, and training cannot go on from there{}",
            root.display(),
            earlier(checkpoints, step)
        ),
        (Some(found), _) if speaks() => {
            note!("warning: the checkpoint of step {step} has {found}");
        }
        _ => {}
    }
    let progress: SoFar = saved.value("so far").with_context(unreadable)?;
    let (phase, done) = (&progress.phase, progress.losses.len());
    say!("resuming {} after step {done} of {phase}", root.display());
    Ok(Some((saved, progress)))
}

/// Says how to go on from the checkpoint before that of `step`.
fn earlier(checkpoints: &Checkpointer, step: u64) -> String {
    match checkpoints.checkpoints().good_before(step) {
        Ok(Some(good)) => {
            format!("; the one before it is of step {good}: --resume {good} goes on from there")
        }
        _ => "; there is none before it to go on from".to_string(),
    }
}

/// Says that a checkpoint is damaged, if that is what an error is about, and how to go on.
fn damage(checkpoints: &Checkpointer, saved: &Saved, error: &StateError) -> Option<String> {
    let StateError::Checkpoint(
        CheckpointError::File { .. }
        | CheckpointError::Checksum { .. }
        | CheckpointError::Io { .. },
    ) = error
    else {
        return None;
    };
    let step = saved.step();
    let earlier = earlier(checkpoints, step);
    Some(format!(
        "the checkpoint of step {step} cannot be read{earlier}"
    ))
}

/// Makes the folder and writes to it, so that a run does not find out after hours.
fn check_writable(root: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(root)?;
    // All processes may try it at once, and what a killed one has left goes with the next.
    let probe = root.join(".tmp-probe");
    std::fs::File::create(&probe)?;
    match std::fs::remove_file(&probe) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use burn_dist::checkpoint::tools;
    use burn_dist::launch::Stop;
    use burn_dist::layout::Rows;

    use super::*;
    use crate::cli::{AxesArgs, MeshArgs};
    use crate::data::batch::{Batch, RandomTokens};
    use crate::data::rng::Rng;
    use crate::mesh::Mesh;
    use crate::metrics::RunMetrics;
    use crate::model::{RopeConfig, RopeScaling, Size};
    use crate::progress::Progress;
    use crate::schedule::Schedule;
    use crate::train::{Phase, Recipe, run};

    /// Random tokens; the run is stopped in the step of one of its batches.
    struct Stopping<'a> {
        source: RandomTokens,
        left: usize,
        stop: &'a Stop,
    }

    impl BatchSource for Stopping<'_> {
        fn next_batch(&mut self) -> anyhow::Result<Batch> {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.stop.ask();
            }
            self.source.next_batch()
        }

        fn position(&self) -> anyhow::Result<Position> {
            self.source.position()
        }

        fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
            self.source.resume(position)
        }
    }

    /// Losses of a run of six steps with so many rows, which is stopped after `steps`.
    fn train(axes: &str, root: &Path, rows: usize, steps: usize) -> anyhow::Result<Vec<f32>> {
        let how = How {
            rows,
            steps,
            resume: Resume::Auto,
            rate: 1e-2,
            keep: 9,
        };
        train_as(axes, root, how)
    }

    /// How a run of six steps goes.
    #[derive(Clone, Copy)]
    struct How {
        rows: usize,
        /// After how many it is stopped.
        steps: usize,
        resume: Resume,
        rate: f64,
        keep: usize,
    }

    fn train_as(axes: &str, root: &Path, how: How) -> anyhow::Result<Vec<f32>> {
        let How {
            rows,
            steps,
            resume,
            rate,
            keep,
        } = how;
        let axes = AxesArgs {
            mesh: Some(axes.parse()?),
            ..AxesArgs::default()
        };
        let mesh = Mesh::open(&MeshArgs::from(axes))?;
        mesh.device().seed(5);
        let args = CheckpointArgs {
            checkpoint: Some(root.to_path_buf()),
            every: 2,
            keep,
            resume,
        };
        let mut keeper = Keeper::open(&args, Some(root), mesh.device())?;
        let model = mesh.parallelize(LlamaConfig::test().init(mesh.device()))?;
        let stop = Stop::new();
        let mut source = Stopping {
            source: RandomTokens {
                batch: rows,
                seq: 8,
                vocab: 64,
                rng: Rng::new(1, 2),
                held: Rows::all(rows),
            },
            left: steps,
            stop: &stop,
        };
        let phase = Phase {
            schedule: Schedule::new(rate, 6),
            recipe: Recipe::default(),
            progress: &Progress::quiet(),
            stop: &stop,
            before: &SoFar::of("pretrain"),
            validation: None,
            metrics: &RunMetrics::none(),
        };
        let device = mesh.device();
        let (_, trace) = run(model, &mut source, phase, device, &mesh, &mut keeper)?;
        Ok(trace.losses)
    }

    /// Every number of a model but for that of its first values, changed one at a time.
    #[test]
    fn another_model_is_named_by_what_differs() {
        let config = LlamaConfig::test();
        let begun = Described::new("tiny", &config);
        let saved = serde_json::to_string(&begun).unwrap();
        let begun: Described = serde_json::from_str(&saved).unwrap();
        begun.check(&Described::new("elsewhere", &config)).unwrap();
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 64,
        };
        let rope = |theta, scaling| RopeConfig { theta, scaling };
        let others = [
            (
                LlamaConfig {
                    dim: 32,
                    ..config.clone()
                },
                "width 32 instead of 16",
            ),
            (
                LlamaConfig {
                    num_layers: 3,
                    ..config.clone()
                },
                "layers 3 instead of 2",
            ),
            // Weights of the same shapes.
            (
                LlamaConfig {
                    num_heads: 8,
                    ..config.clone()
                },
                "heads 8 instead of 4",
            ),
            (
                LlamaConfig {
                    num_kv_heads: 1,
                    ..config.clone()
                },
                "key/value heads 1 instead of 2",
            ),
            (
                LlamaConfig {
                    hidden_dim: 64,
                    ..config.clone()
                },
                "feed-forward width 64 instead of 32",
            ),
            (
                LlamaConfig {
                    vocab: 65,
                    ..config.clone()
                },
                "vocabulary 65 instead of 64",
            ),
            (
                LlamaConfig {
                    rope: rope(7.0, None),
                    ..config.clone()
                },
                "base of rotary positions 7 instead of 500000",
            ),
            (
                LlamaConfig {
                    rope: rope(500_000.0, Some(scaling)),
                    ..config.clone()
                },
                "from 1 to 4 turns instead of none",
            ),
            (
                LlamaConfig {
                    norm_eps: 0.1,
                    ..config.clone()
                },
                "epsilon of norms 0.1 instead of 0.00001",
            ),
            (
                LlamaConfig {
                    tied: true,
                    ..config.clone()
                },
                "output the embedding instead of a matrix of its own",
            ),
        ];
        assert_eq!(others.len(), config.facts().len());
        for (other, expected) in others {
            let error = begun
                .check(&Described::new("S", &other))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(
                    "it was begun with the model tiny, and goes on with S, which has "
                ),
                "{error}"
            );
            assert!(error.contains(expected), "{error}");
            assert_eq!(error.matches(" instead of ").count(), 1, "{error}");
        }
        let small = Described::new("S", &Size::S.config());
        let error = Described::new("tiny", &Size::Tiny.config())
            .check(&small)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("width 256 instead of 128, heads 8 instead of 4, "),
            "{error}"
        );
    }

    #[test]
    fn the_meshes_of_a_run_are_those_on_which_it_did_steps() {
        let mut so_far = SoFar::of("pretrain");
        let mut left = |mesh: &str, steps: usize| {
            so_far.go_on(mesh);
            so_far.losses.extend(vec![1.0; steps]);
            so_far.meshes.clone()
        };
        let named = |all: &[(usize, &str)]| -> Vec<(usize, String)> {
            all.iter()
                .map(|(first, mesh)| (*first, mesh.to_string()))
                .collect()
        };
        assert_eq!(left("fsdp=2", 3), named(&[(1, "fsdp=2")]));
        assert_eq!(left("fsdp=2", 1), named(&[(1, "fsdp=2")]));
        assert_eq!(left("tp=2", 0), named(&[(1, "fsdp=2"), (5, "tp=2")]));
        assert_eq!(left("fsdp=2", 2), named(&[(1, "fsdp=2")]));
        assert_eq!(left("pp=2", 1), named(&[(1, "fsdp=2"), (7, "pp=2")]));
    }

    #[test]
    fn a_stopped_run_goes_on_as_if_it_had_not_been() {
        for axes in ["fsdp=2", "fsdp=2,tp=2", "pp=2"] {
            let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let expected = train(axes, whole.path(), 4, 9).unwrap();
            assert_eq!(expected.len(), 6);
            assert_eq!(train(axes, parts.path(), 4, 1).unwrap(), expected[..1]);
            assert_eq!(train(axes, parts.path(), 4, 3).unwrap(), expected[..4]);
            assert_eq!(train(axes, parts.path(), 4, 9).unwrap(), expected, "{axes}");
            let last = |root: &Path| {
                burn_dist::checkpoint::Checkpoint::open(root.join("step-0000000006")).unwrap()
            };
            let found = tools::diff(&last(parts.path()), &last(whole.path())).unwrap();
            assert_eq!(found.changed, []);
            // Nothing is left to do.
            assert_eq!(train(axes, parts.path(), 4, 9).unwrap(), expected);
        }
    }

    #[test]
    fn another_mesh_goes_on_with_the_same_data() {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let expected = train("fsdp=2", whole.path(), 4, 9).unwrap();
        train("fsdp=2", parts.path(), 4, 2).unwrap();
        train("tp=2", parts.path(), 4, 2).unwrap();
        let found = train("pp=2", parts.path(), 4, 9).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 2e-4 * expected,
                "{found}, {expected}"
            );
        }
    }

    #[test]
    fn a_folder_that_does_not_fit_is_refused() {
        let root = tempfile::tempdir().unwrap();
        train("fsdp=2", root.path(), 4, 2).unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = train("fsdp=2", &file, 4, 2).unwrap_err().to_string();
        assert!(error.starts_with("cannot keep checkpoints in "), "{error}");
        let mesh = Mesh::open(&MeshArgs::default()).unwrap();
        let args = CheckpointArgs {
            checkpoint: Some(root.path().to_path_buf()),
            every: 2,
            keep: 1,
            resume: Resume::Never,
        };
        let refused = Keeper::open(&args, Some(root.path()), mesh.device())
            .err()
            .unwrap();
        assert!(
            refused
                .to_string()
                .contains("go on from there with --resume auto"),
            "{refused}"
        );
    }

    /// One line of why a run does not go on.
    fn refused(root: &Path, resume: Resume) -> String {
        let how = How {
            rows: 4,
            steps: 9,
            resume,
            rate: 1e-2,
            keep: 9,
        };
        let error = train_as("fsdp=2", root, how).expect_err("it does not go on");
        crate::voice::in_one_line(&error)
    }

    fn names(root: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(root).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_goes_on_from_the_step_that_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        let expected = train("fsdp=2", root.path(), 4, 9).unwrap();
        let error = refused(root.path(), Resume::At(3));
        assert!(
            error.contains("which has those of steps 2, 4, 6"),
            "{error}"
        );
        let how = How {
            rows: 4,
            steps: 1,
            resume: Resume::At(2),
            rate: 1e-2,
            keep: 9,
        };
        // The same step again; those after it are done and saved again, and the old ones are still there.
        assert_eq!(train_as("fsdp=2", root.path(), how).unwrap(), expected[..3]);
        let found = names(root.path());
        let steps = [
            "aside-step-0000000004",
            "aside-step-0000000006",
            "checkpoints.lock",
            "step-0000000002",
            "step-0000000003",
        ];
        assert_eq!(found, steps);
        assert_eq!(train("fsdp=2", root.path(), 4, 9).unwrap(), expected);
    }

    #[test]
    fn a_damaged_checkpoint_names_the_one_before_it() {
        type Damage = fn(&Path);
        let damages: [Damage; 2] = [
            // A manifest that is JSON as before; values.
            |step| {
                let path = step.join("manifest.json");
                let text = std::fs::read_to_string(&path).unwrap();
                std::fs::write(&path, text.replacen("fsdp", "fsdq", 1)).unwrap();
            },
            |step| {
                let path = step.join("00001-of-00002.safetensors");
                let mut bytes = std::fs::read(&path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                std::fs::write(&path, bytes).unwrap();
            },
        ];
        for damage in damages {
            let root = tempfile::tempdir().unwrap();
            let expected = train("fsdp=2", root.path(), 4, 9).unwrap();
            damage(&root.path().join("step-0000000006"));
            let error = refused(root.path(), Resume::Auto);
            assert!(error.contains("--resume 4 goes on from there"), "{error}");
            assert!(names(root.path()).contains(&"step-0000000006".to_string()));
            let how = How {
                rows: 4,
                steps: 9,
                resume: Resume::At(4),
                rate: 1e-2,
                keep: 9,
            };
            assert_eq!(train_as("fsdp=2", root.path(), how).unwrap(), expected);
        }
    }

    #[test]
    fn a_checkpoint_of_values_that_are_no_numbers_takes_no_place() {
        let root = tempfile::tempdir().unwrap();
        train("fsdp=2", root.path(), 4, 2).unwrap();
        let how = How {
            rows: 4,
            steps: 1,
            resume: Resume::Auto,
            rate: f64::INFINITY,
            keep: 1,
        };
        // The loss of step 3 is that of the weights before it, which the step spoils.
        train_as("fsdp=2", root.path(), how).unwrap();
        let found = names(root.path());
        let both = ["checkpoints.lock", "step-0000000002", "step-0000000003"];
        assert_eq!(found, both);
        let error = refused(root.path(), Resume::Auto);
        assert!(
            error.contains("of step 3, has ") && error.contains(" NaN or infinite values"),
            "{error}"
        );
        assert!(error.contains("--resume 2 goes on from there"), "{error}");
        // If it is asked for all the same, the rate is not blamed.
        let error = refused(root.path(), Resume::At(3));
        assert!(
            error.starts_with("the loss of step 4 is NaN: the checkpoint of step 3 has "),
            "{error}"
        );
        assert!(!error.contains("lower --lr"), "{error}");
        assert!(error.contains("--resume 2 goes on from there"), "{error}");
    }

    #[test]
    fn two_programs_do_not_keep_checkpoints_in_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let mesh = Mesh::open(&MeshArgs::default()).unwrap();
        let args = CheckpointArgs {
            checkpoint: Some(root.path().to_path_buf()),
            every: 2,
            keep: 1,
            resume: Resume::Auto,
        };
        let open = || Keeper::open(&args, Some(root.path()), mesh.device());
        let first = open().unwrap();
        let error = open().err().expect("it is taken");
        assert_eq!(crate::mesh::exit_code(&error), 78);
        let error = crate::voice::in_one_line(&error);
        let holder = format!("process {}", std::process::id());
        assert!(
            error.contains(&holder) && error.contains("choose another"),
            "{error}"
        );
        drop(first);
        open().unwrap();
    }
}
