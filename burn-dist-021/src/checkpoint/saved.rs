//! A checkpoint of a training run, and loading from it.

use burn_core::module::{AutodiffModule, Module};
use burn_core::record::Record;
use burn_core::tensor::backend::AutodiffBackend;
use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{Checkpoint, CheckpointError, KeyReport};
use burn_optim::Optimizer;
use burn_optim::lr_scheduler::LrScheduler;
use serde::de::DeserializeOwned;

use super::StateError;
use super::load_record::load_record;
use super::opened::{LoadOptions, Opened};
use super::parameters::{Parameter, parameters};
use super::read::{Reader, Source};
use super::restore::restore;
use super::state::RECORDS;
use crate::mesh::MeshShape;
use crate::parallel::MeshBackend;
use crate::record::parts::TensorParts;
use crate::run::Fault;
use burn_dist_door::AnyTensor;

/// A checkpoint of a training run, to be loaded onto the mesh of its [`Checkpointer`](super::Checkpointer), whatever
/// mesh it was saved from. Each process reads what its ranks hold.
pub struct Saved<B: MeshBackend> {
    opened: Opened,
    device: B::Device,
    mesh: MeshShape,
}

impl<B: MeshBackend> Saved<B> {
    pub(super) fn new(
        step: u64,
        checkpoint: Checkpoint,
        device: B::Device,
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
    pub fn module<M: Module<B>>(&self, name: &str, module: M) -> Result<M, StateError> {
        self.module_reported(name, module).map(|(module, _)| module)
    }

    /// Loads as [`Self::module`] does, and also returns the differences that were no errors.
    ///
    /// # Errors
    /// As [`Self::module`].
    pub fn module_reported<M: Module<B>>(
        &self,
        name: &str,
        module: M,
    ) -> Result<(M, KeyReport), StateError> {
        let paths = self.opened.paths(name)?;
        let parameters = parameters::<B>(&module);
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
        let give = |parts| B::give(parts, &self.device);
        let module = restore(module, &parameters, wants, &self.reader(&give))?;
        Ok((module, report))
    }

    /// Returns an optimizer of `model` with the state of the checkpoint, laid out as the parameters are.
    ///
    /// # Errors
    /// [`StateError::NoSuch`]; [`StateError::Parameters`]; [`StateError::Mismatch`] if it is of another optimizer;
    /// [`StateError`].
    pub fn optimizer<M, O>(&self, name: &str, optimizer: O, model: &M) -> Result<O, StateError>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let record = self.joined(name, &parameters::<B>(model))?;
        Ok(optimizer.load_record(record))
    }

    /// Returns a learning-rate scheduler with the state of the checkpoint.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub fn scheduler<S: LrScheduler>(&self, name: &str, scheduler: S) -> Result<S, StateError> {
        Ok(scheduler.load_record::<B>(self.record(name)?))
    }

    /// Returns a record.
    ///
    /// # Errors
    /// [`StateError::NoSuch`]; [`StateError::Mismatch`] if it is of another type; [`StateError`].
    pub fn record<R: Record<B>>(&self, name: &str) -> Result<R, StateError> {
        self.joined(name, &[])
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
        B::set_random_state(&self.device, state);
        Ok(())
    }

    fn joined<R: Record<B>>(&self, name: &str, parameters: &[Parameter]) -> Result<R, StateError> {
        let text = self.opened.named("record", RECORDS, name)?.clone();
        let give = |parts| B::give(parts, &self.device);
        let (checkpoint, reader) = (&self.opened.checkpoint, self.reader(&give));
        load_record::<B, R>(name, text, parameters, checkpoint, &reader, &self.device)
    }

    fn reader<'a>(
        &'a self,
        give: &'a dyn Fn(TensorParts) -> Result<AnyTensor, Fault>,
    ) -> Reader<'a> {
        Reader::new(
            Source::Checkpoint(&self.opened.checkpoint),
            &self.mesh,
            B::local_ranks(&self.device),
            give,
            self.opened.options,
        )
    }
}
