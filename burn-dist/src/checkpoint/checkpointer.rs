//! Saving a state: who writes what, in all processes.

use std::path::PathBuf;
use std::sync::Arc;

use burn_core::tensor::Device;
use burn_dist_checkpoint::{Busy, Checkpoints, Keep, Newest, SavePlan, Saver, Saving};
use serde_json::{Map, Value, json};

use super::job::Job;
use super::opened::{ENTRY, STATE_VERSION};
use super::processes::{Processes, agree, in_all};
use super::saved::Saved;
use super::write::{ask, describe, plan};
use super::{State, StateError};
use crate::bridge::mesh_device;
use crate::mesh::MeshShape;
use crate::record::local_ranks;
use crate::record::parts::Parts;
use crate::run::Fault;
use crate::{Dist, MeshDevice};

/// The checkpoints of a training run on a mesh.
///
/// In several processes, all of them make one, at the same point of the program, and all save and load alike; they
/// share the directory. One program saves to it at a time ([`Self::lock`]); any may read.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamConfig, GradientsParams};
/// use burn::tensor::Tensor;
/// use burn_dist::checkpoint::{Checkpointer, State};
/// use burn_dist::{DeviceMesh, ParallelizeWith, Plan};
///
/// let directory = std::env::temp_dir().join(format!("burn-dist-doc-{}", std::process::id()));
/// let train = |mesh: &str| -> Result<Vec<f32>, Box<dyn std::error::Error>> {
///     let mesh = DeviceMesh::parse(mesh)?;
///     let device = mesh.device().autodiff();
///     let mut model: Linear = LinearConfig::new(4, 2).init(&device).parallelize_with(&mesh, &Plan::new())?;
///     let mut optimizer = AdamConfig::new().init();
///     let mut checkpoints = Checkpointer::at(&directory, &device)?;
///     let mut first = 0;
///     if let Some(saved) = checkpoints.latest()? {
///         model = saved.module("model", model)?;
///         optimizer = saved.optimizer("optimizer", optimizer, &model)?;
///         first = saved.value("next step")?;
///     }
///     for step in first..first + 2 {
///         let loss = model.forward(Tensor::<2>::ones([2, 4], &device)).mean();
///         let gradients = GradientsParams::from_grads(loss.backward(), &model);
///         model = optimizer.step(0.1, model, gradients);
///         let state = State::new().module("model", &model).optimizer("optimizer", &optimizer, &model);
///         checkpoints.save(step + 1, state.value("next step", &(step + 1)))?;
///     }
///     Ok(model.weight.val().into_data().try_into_vec()?)
/// };
/// train("fsdp=2")?; // Steps 0 and 1,
/// train("tp=3")?; // and 2 and 3, on another mesh.
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Checkpointer {
    checkpoints: Checkpoints,
    on: MeshDevice,
    mesh: MeshShape,
    keep: Option<Keep>,
    processes: Option<Processes>,
    saver: Saver,
    /// The plan of the last save, which is that of the next one if the tensors are the same.
    plan: Option<Arc<SavePlan>>,
}

/// Returns the processes that share the ranks out, if they are several. All make one, at the same point of the program.
pub(super) fn processes_of(mesh: &MeshDevice) -> Result<Option<Processes>, StateError> {
    Ok(Dist::votes(mesh)?.map(Processes::new))
}

/// Returns the mesh of a device, if it computes.
pub(super) fn mesh_with_values(device: &Device) -> Result<(MeshDevice, MeshShape), StateError> {
    let on = mesh_device(device).ok_or_else(|| StateError::NoMesh {
        device: format!("{device:?}"),
    })?;
    let mesh = on.shape().ok_or_else(|| Fault::ended(on))?.clone();
    match Dist::is_dry_run(on) {
        true => Err(StateError::DryRun {
            mesh: mesh.to_string(),
        }),
        false => Ok((on.clone(), mesh)),
    }
}

impl Checkpointer {
    /// Keeps the checkpoints of a run in a directory, which need not be there yet.
    ///
    /// # Errors
    /// [`StateError::DryRun`], [`StateError::Processes`], or what has stopped the mesh.
    pub fn at(root: impl Into<PathBuf>, device: &Device) -> Result<Self, StateError> {
        Self::with(Checkpoints::at(root), device)
    }

    /// Opens checkpoints on any storage, as [`Self::at`] does in a folder.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn with(checkpoints: Checkpoints, device: &Device) -> Result<Self, StateError> {
        let (on, mesh) = mesh_with_values(device)?;
        Ok(Self {
            checkpoints,
            processes: processes_of(&on)?,
            on,
            mesh,
            keep: None,
            saver: Saver::new(),
            plan: None,
        })
    }

    /// Removes checkpoints that need not be kept after each save. Without it all are kept. The last one without NaN and
    /// infinite values always is.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Returns the directories of the run.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Takes the directory for this program, as the first save does: [`Checkpoints::lock`] by process 0. A program that
    /// calls it at its start learns there that another one saves to the directory.
    ///
    /// # Communication
    /// All processes call it, and learn how it ended.
    /// # Errors
    /// [`CheckpointError::Taken`](burn_dist_checkpoint::CheckpointError::Taken); [`StateError`].
    pub fn lock(&self) -> Result<(), StateError> {
        in_all(self.processes.as_ref(), "take the directory of", || {
            if self.leads() {
                self.checkpoints.lock()?;
            }
            Ok(())
        })
    }

    /// Takes the checkpoints of all steps after `step` their names, or of all, so that a run that goes on from it saves
    /// them again; nothing is removed. Returns, in process 0, where each is now.
    ///
    /// # Communication
    /// All processes call it, once each has what it loads, and learn how it ended.
    /// # Errors
    /// As [`Self::lock`].
    pub fn set_aside_after(&self, step: Option<u64>) -> Result<Vec<(u64, PathBuf)>, StateError> {
        // Nobody needs what they are called any more.
        in_all(self.processes.as_ref(), "go on from", || Ok(()))?;
        in_all(self.processes.as_ref(), "set aside", || {
            Ok(match self.leads() {
                true => self.checkpoints.set_aside_after(step)?,
                false => Vec::new(),
            })
        })
    }

    /// Returns whether this process does what only one does.
    fn leads(&self) -> bool {
        self.processes.as_ref().is_none_or(Processes::leads)
    }

    /// Saves a state and waits until it is safe on disk.
    ///
    /// # Communication
    /// Ends the window, and waits for the ranks. Processes tell each other their checksums.
    /// # Errors
    /// [`StateError`]; earlier checkpoints are whole then, and this one is not there.
    pub fn save(&mut self, step: u64, state: State) -> Result<(), StateError> {
        self.saver.wait();
        let job = self.prepare(step, state)?;
        job.run(None)
    }

    /// Saves a state while training goes on: returns as soon as the ranks were asked for their parts. What is trained
    /// meanwhile changes nothing: a rank keeps at most one copy of its state until it is written.
    ///
    /// If an earlier save is still running, it waits for that. Who drops the result finds an error in the log alone.
    ///
    /// # Communication
    /// Ends the window. Processes tell each other their checksums, in the background.
    /// # Errors
    /// [`StateError`]; what goes wrong later, [`Saving::wait`] returns.
    pub fn save_in_background(
        &mut self,
        step: u64,
        state: State,
    ) -> Result<Saving<(), StateError>, StateError> {
        self.saver.wait();
        let job = self.prepare(step, state)?;
        let saving = self
            .saver
            .start(Busy::Wait, move |meter| job.run(Some(meter)));
        Ok(saving?)
    }

    /// Waits until a save in the background has ended.
    pub fn wait(&self) {
        self.saver.wait();
    }

    /// Opens the newest checkpoint, if there is any: see [`Self::newest`].
    ///
    /// # Errors
    /// [`StateError`].
    pub fn latest(&self) -> Result<Option<Saved>, StateError> {
        self.newest()?.map(|step| self.open(step)).transpose()
    }

    /// Returns the step of the newest checkpoint, if there is any: in all processes the one that process 0 finds. What
    /// it passes over is logged: [`Checkpoints::newest`].
    ///
    /// # Communication
    /// All processes call it.
    /// # Errors
    /// [`StateError`].
    pub fn newest(&self) -> Result<Option<u64>, StateError> {
        let all = agree(self.processes.as_ref(), "find", || {
            let newest = match self.leads() {
                true => self.checkpoints.newest()?,
                false => Newest::default(),
            };
            for passed in &newest.passed_over {
                tracing::warn!("{passed}; it is passed over");
            }
            Ok(json!(newest.step))
        })?;
        Ok(all.first().and_then(Value::as_u64))
    }

    /// Opens the checkpoint of a step.
    ///
    /// # Errors
    /// [`StateError`], if one of the processes cannot.
    pub fn open(&self, step: u64) -> Result<Saved, StateError> {
        let opened = in_all(self.processes.as_ref(), "open", || {
            Ok(self.checkpoints.open(step)?)
        })?;
        Saved::new(step, opened, self.on.clone(), self.mesh.clone())
    }

    /// Asks the ranks for what this process writes.
    fn prepare(&mut self, step: u64, mut state: State) -> Result<Job, StateError> {
        state.check()?;
        let tensors = describe(&state.tensors)?;
        let plan = match self.plan.take().filter(|plan| plan.tensors() == tensors) {
            Some(plan) => plan,
            None => Arc::new(plan(&self.mesh, tensors)?),
        };
        let writers = ask(&plan, &state.tensors, local_ranks(&self.on));
        let (seed, streams) = Dist::random_state(&self.on);
        let mut texts = state.texts;
        texts.insert("version".into(), STATE_VERSION.into());
        texts.insert("random".into(), json!({ "seed": seed, "streams": streams }));
        self.plan = Some(plan.clone());
        Ok(Job {
            checkpoints: self.checkpoints.clone(),
            step,
            keep: self.keep,
            processes: self.processes.clone(),
            plan,
            writers,
            metadata: Map::from_iter([(ENTRY.to_string(), Value::Object(texts))]),
        })
    }
}
