//! Checkpoints of a run: what is saved when, and how a run goes on.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use burn_core::tensor::Device;
use burn_optim::ModuleOptimizer;
use serde::{Deserialize, Serialize};

use super::args::{CheckpointArgs, Resume};
use super::batch::{BatchSource, Position};
use super::error::SaveFailed;
use super::lost::Lost;
use super::model::{Model, Words};
use super::options::{self, Options};
use super::processes::Processes;
use super::voice::{note, say, speaks};
use crate::checkpoint::{
    CheckpointError, Checkpointer, Keep, NonFinite, Saved, Saving, State, StateError,
};
use crate::train::metrics::Event;
use crate::train::run::{Begin, RunFolder, RunLock};

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
    pub fn new<M: Model>(name: &str, config: &M::Config) -> Self {
        let facts = M::facts(config).into_iter();
        Self {
            name: name.to_string(),
            facts: facts
                .map(|(what, value)| (what.to_string(), value))
                .collect(),
        }
    }

    /// Refuses another model than this one, which a run was begun with; `words` name the options of a model.
    ///
    /// # Errors
    /// If the models differ; the message names all differences.
    pub fn check(&self, other: &Self, words: Words) -> anyhow::Result<()> {
        let value = |of: &Self, what: &str| {
            let found = of.facts.iter().find(|(name, _)| name == what);
            found.map_or("nothing".to_string(), |(_, value)| value.clone())
        };
        let mut differences = Vec::new();
        let lost = self.facts.iter().map(|(what, _)| what);
        let lost = lost.filter(|what| other.facts.iter().all(|(found, _)| found != *what));
        for what in other.facts.iter().map(|(what, _)| what).chain(lost) {
            let (expected, found) = (value(self, what), value(other, what));
            if expected != found {
                differences.push(format!("{what} {found} instead of {expected}"));
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        bail!(
            "it was begun with the model {}, and goes on with {}, which has {}{}",
            self.name,
            other.name,
            differences.join(", "),
            words.model
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
    pub fn enter<M: Model>(
        &mut self,
        fresh: SoFar,
        model: M,
        optim: ModuleOptimizer,
        source: &mut dyn BatchSource<Batch = M::Batch>,
    ) -> anyhow::Result<(M, ModuleOptimizer, SoFar)> {
        let Some(kept) = &mut self.kept else {
            return Ok((model, optim, fresh));
        };
        let is_here = |(_, left): &mut (Saved, SoFar)| left.phase == fresh.phase;
        let Some((saved, progress)) = kept.resumed.take_if(is_here) else {
            return Ok((model, optim, fresh));
        };
        let what = || {
            let root = kept.root.display();
            let again = M::WORDS.again;
            format!("cannot go on with {root}: give {again} that the run was begun with")
        };
        if let (Some(expected), Some(found)) = (&progress.model, &fresh.model) {
            expected.check(found, M::WORDS).with_context(what)?;
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
    pub fn save<M: Model>(
        &mut self,
        model: &M,
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

/// A checkpoint that is looked at, and not gone on from.
pub struct Stored {
    saved: Saved,
    /// How far its run was.
    pub so_far: SoFar,
    /// The context of errors where it cannot be read.
    unreadable: String,
}

impl Stored {
    /// Opens that of a step, or the newest, in a folder that another program may have meanwhile.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(root: &Path, step: Option<u64>, device: &Device) -> anyhow::Result<Self> {
        // A folder is made by who saves.
        if !root.is_dir() {
            bail!("there is no folder of checkpoints {}", root.display());
        }
        let checkpoints = Checkpointer::at(root, device)?;
        let resume = step.map_or(Resume::Auto, Resume::At);
        let found = opened(&checkpoints, resume, root, "read")?;
        let (saved, so_far) =
            found.with_context(|| format!("there is no checkpoint in {}", root.display()))?;
        warn_of_non_finite(&saved);
        Ok(Self {
            unreadable: format!("cannot read the checkpoint of step {}", saved.step()),
            saved,
            so_far,
        })
    }

    /// Reads the weights into a model.
    ///
    /// # Errors
    /// If they are those of another model than the one that is `described`, or cannot be read.
    pub fn model<M: Model>(&self, model: M, described: &Described) -> anyhow::Result<M> {
        if let Some(expected) = &self.so_far.model {
            let checked = expected.check(described, M::WORDS);
            checked.with_context(|| self.unreadable.clone())?;
        }
        let model = self.saved.module("model", model);
        model.with_context(|| self.unreadable.clone())
    }
}

/// Opens what a run goes on from.
fn resumed(
    checkpoints: &Checkpointer,
    resume: Resume,
    root: &Path,
) -> anyhow::Result<Option<(Saved, SoFar)>> {
    if resume == Resume::Never {
        tell_passed_over(checkpoints)?;
        if let Some(step) = checkpoints.newest()? {
            bail!(
                "{} has checkpoints up to step {step}: go on from there with --resume auto, or choose another \
                 folder",
                root.display()
            );
        }
        return Ok(None);
    }
    let found = opened(checkpoints, resume, root, "go on from")?;
    if let Some((saved, _)) = &found
        && let Some(what) = saved.checkpoint().manifest().non_finite()
    {
        let step = saved.step();
        if resume == Resume::Auto {
            bail!(
                "the newest checkpoint in {}, of step {step}, has {what}, and training cannot go on from there{}",
                root.display(),
                earlier(checkpoints, step)
            );
        }
        warn_of_non_finite(saved);
    }
    match &found {
        Some((_, so_far)) => {
            let (phase, done) = (&so_far.phase, so_far.losses.len());
            say!("resuming {} after step {done} of {phase}", root.display());
        }
        None => say!(
            "no checkpoint in {}: the run begins with step 1",
            root.display()
        ),
    }
    Ok(found)
}

/// Warns of values that are not finite, in the process that speaks.
fn warn_of_non_finite(saved: &Saved) {
    if let Some(found) = saved
        .checkpoint()
        .manifest()
        .non_finite()
        .filter(|_| speaks())
    {
        note!(
            "warning: the checkpoint of step {} has {found}",
            saved.step()
        );
    }
}

/// Tells of what is in the folder and no checkpoint.
fn tell_passed_over(checkpoints: &Checkpointer) -> anyhow::Result<()> {
    if speaks() {
        for passed in checkpoints.checkpoints().newest()?.passed_over {
            note!("warning: {passed}; it is passed over");
        }
    }
    Ok(())
}

/// Opens the checkpoint of a step, or the newest, if there is one: to `what` it, for errors.
fn opened(
    checkpoints: &Checkpointer,
    resume: Resume,
    root: &Path,
    what: &str,
) -> anyhow::Result<Option<(Saved, SoFar)>> {
    tell_passed_over(checkpoints)?;
    let unreadable = || format!("cannot read the checkpoints in {}", root.display());
    let saved = match resume {
        Resume::At(step) => checkpoints.open(step).with_context(|| {
            let steps = checkpoints.checkpoints().steps().unwrap_or_default();
            let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
            let steps = match steps.is_empty() {
                true => "none".to_string(),
                false => format!("those of steps {}", steps.join(", ")),
            };
            let root = root.display();
            format!("cannot {what} the checkpoint of step {step} in {root}, which has {steps}")
        })?,
        Resume::Never | Resume::Auto => match checkpoints.latest() {
            Ok(Some(saved)) => saved,
            Ok(None) => return Ok(None),
            Err(error) => {
                let newest = checkpoints.checkpoints().newest();
                let step = newest.ok().and_then(|newest| newest.step);
                let earlier = step.map(|step| earlier(checkpoints, step));
                let what = format!("{}{}", unreadable(), earlier.unwrap_or_default());
                return Err(anyhow::Error::from(error).context(what));
            }
        },
    };
    let progress: SoFar = saved.value("so far").with_context(unreadable)?;
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

/// Takes the folder of a run, in the process that writes.
///
/// # Communication
/// All processes learn how it ended.
/// # Errors
/// In all processes, if another program has the folder, or it cannot be used so.
pub fn take(
    folder: &RunFolder,
    resume: Resume,
    processes: &Processes,
) -> anyhow::Result<Option<RunLock>> {
    let begin = match resume {
        Resume::Never => Begin::New,
        Resume::Auto | Resume::At(_) => Begin::OrGoOn,
    };
    let lock = (processes.process() == 0).then(|| folder.lock(begin));
    processes.together(
        lock.transpose().map_err(Into::into),
        "take the folder of the run",
    )
}

/// Returns which values are not finite of what all processes have read: of those that several have read, as often.
///
/// # Communication
/// Waits for the other processes.
/// # Errors
/// If another process is late or has ended.
pub fn non_finite(
    here: Option<NonFinite>,
    processes: &Processes,
) -> anyhow::Result<Option<NonFinite>> {
    Ok(NonFinite::sum(processes.gather(here)?))
}
