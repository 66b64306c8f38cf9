//! A checkpoint of a training run, and loading from it.

use burn_core::module::Module;
use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{Checkpoint, CheckpointError, KeyReport};
use burn_dist_door::AnyTensor;
use burn_optim::ModuleOptimizer;
use serde::de::DeserializeOwned;

use super::StateError;
use super::loaded::Host;
use super::opened::{LoadOptions, Opened};
use super::parameters::parameters;
use super::read::{Reader, Source};
use super::record::{join_optimizer, join_scheduler};
use super::restore::restore;
use super::scheduler::Scheduler;
use super::state::RECORDS;
use super::wants::wants;
use crate::mesh::MeshShape;
use crate::record::local_ranks;
use crate::record::parts::{Parts, TensorParts};
use crate::run::Fault;
use crate::{Dist, MeshDevice};

/// A checkpoint of a training run, to be loaded onto the mesh of its [`Checkpointer`](super::Checkpointer), whatever
/// mesh it was saved from. Each process reads what its ranks hold.
pub struct Saved {
    opened: Opened,
    device: MeshDevice,
    mesh: MeshShape,
}

impl Saved {
    pub(super) fn new(
        step: u64,
        checkpoint: Checkpoint,
        device: MeshDevice,
        mesh: MeshShape,
    ) -> Result<Self, StateError> {
        Ok(Self {
            opened: Opened::new(step, checkpoint)?,
            device,
            mesh,
        })
    }

    /// Sets how it is loaded.
    pub fn options(mut self, options: LoadOptions) -> Self {
        self.opened.options = options;
        self
    }

    /// Returns the step that it was saved under.
    pub fn step(&self) -> u64 {
        self.opened.step
    }

    /// Returns its files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.opened.checkpoint
    }

    /// Returns a module with the values of the checkpoint, each parameter laid out as the module says
    /// (`parallelize`). Parameters that have no value yet are not initialised first.
    ///
    /// # Errors
    /// [`StateError::NoSuch`]; [`CheckpointError::Keys`] with every missing, unexpected or misshapen parameter;
    /// [`StateError`].
    pub fn module<M: Module>(&self, name: &str, module: M) -> Result<M, StateError> {
        self.module_reported(name, module).map(|(module, _)| module)
    }

    /// Loads as [`Self::module`] does, and also returns the differences that were no errors.
    ///
    /// # Errors
    /// As [`Self::module`].
    pub fn module_reported<M: Module>(
        &self,
        name: &str,
        module: M,
    ) -> Result<(M, KeyReport), StateError> {
        let paths = self.opened.paths(name)?;
        let parameters = parameters(&module);
        let report = self.opened.compare(name, &parameters, &paths);
        if !report.is_fine(self.opened.options.matching) {
            return Err(CheckpointError::Keys(Box::new(report)).into());
        }
        let wants = parameters.iter().map(|parameter| {
            let key = format!("{name}.{}", parameter.path);
            report
                .fits(&key)
                .then(|| parameter.want(key, Form::Same, &self.mesh))
        });
        let wants = wants.collect();
        let give = |parts| Dist::give(parts, &self.device);
        let module = restore(module, &parameters, wants, &self.reader(&give))?;
        Ok((module, report))
    }

    /// Returns an optimizer of `model` with the state of the checkpoint, each tensor laid out as its parameter is.
    ///
    /// Burn makes the state of an optimizer on its default device, and moves it to the mesh with the next step. Where
    /// that device is Flex, the ranks have the state from the start, and nothing moves: what Burn has of it is read
    /// from the mesh if somebody looks at it (`to_record`), and if a clone of the optimizer lives when the next step is
    /// made. Such a clone takes the state in the default device's type of floats.
    ///
    /// Where the default device is another one, each process has all of the state there until the next step.
    ///
    /// # Errors
    /// [`StateError::NoSuch`]; [`StateError::Parameters`]; [`StateError::Mismatch`] if it is of another optimizer;
    /// [`StateError`].
    pub fn optimizer<M: Module>(
        &self,
        name: &str,
        optimizer: ModuleOptimizer,
        model: &M,
    ) -> Result<ModuleOptimizer, StateError> {
        let text = self.opened.named("record", RECORDS, name)?;
        let parameters = parameters(model);
        let wants = wants(text, &parameters, &self.opened.checkpoint, &self.mesh)?;
        let host = Host::new();
        for want in &wants {
            host.takes(&want.key, want.dtype)?;
        }
        let keys: Vec<String> = wants.iter().map(|want| want.key.clone()).collect();
        let give = |parts| Dist::give(parts, &self.device);
        let tensors = self.reader(&give).read(wants)?;
        // In the order of the text, which all processes have: some are read from the mesh.
        let tensors = keys.iter().zip(tensors);
        let tensors = tensors.map(|(key, tensor)| host.data_of(key, tensor));
        let tensors = tensors.collect::<Result<_, StateError>>()?;
        let ids = parameters.iter();
        let ids = ids.map(|parameter| (parameter.path.as_str(), parameter.id.val()));
        join_optimizer(name, text, tensors, &ids.collect(), (optimizer, model))
    }

    /// Returns a learning-rate scheduler with the state of the checkpoint.
    ///
    /// # Errors
    /// [`StateError::NoSuch`]; [`StateError::Mismatch`] if it is of another scheduler.
    pub fn scheduler<S: Scheduler>(&self, name: &str, scheduler: S) -> Result<S, StateError> {
        join_scheduler(name, self.opened.named("record", RECORDS, name)?, scheduler)
    }

    /// Returns a value of the program.
    ///
    /// # Errors
    /// [`StateError::NoSuch`]; [`StateError::Mismatch`] if it is of another type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T, StateError> {
        self.opened.value(name)
    }

    /// Has the mesh draw the random numbers that it would have drawn after the save. Once everything else is loaded
    /// and made: what is drawn afterwards counts.
    ///
    /// # Errors
    /// [`StateError::Mismatch`].
    pub fn restore_random(&self) -> Result<(), StateError> {
        let state = self.opened.random_state()?;
        Dist::set_random_state(&self.device, state);
        Ok(())
    }

    fn reader<'a>(
        &'a self,
        give: &'a dyn Fn(TensorParts) -> Result<AnyTensor, Fault>,
    ) -> Reader<'a> {
        Reader::new(
            Source::Checkpoint(&self.opened.checkpoint),
            &self.mesh,
            local_ranks(&self.device),
            give,
            self.opened.options,
        )
    }
}
