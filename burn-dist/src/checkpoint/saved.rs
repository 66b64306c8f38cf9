//! A checkpoint of a training run, and loading from it.

use burn_core::module::Module;
use burn_core::tensor::{Bytes, Device, TensorData};
use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{
    Checkpoint, CheckpointError, KeyReport, Match, Options, Region, Request,
};
use burn_dist_door::AnyTensor;
use burn_optim::ModuleOptimizer;
use serde::de::DeserializeOwned;

use super::StateError;
use super::opened::{LoadOptions, Opened};
use super::parameters::parameters;
use super::read::{Reader, Source, Want};
use super::record::{join_optimizer, join_scheduler};
use super::restore::restore;
use super::scheduler::Scheduler;
use super::state::RECORDS;
use super::wants::wants;
use crate::mesh::{DType, MeshShape};
use crate::ops::dtype::{of_burn, to_burn};
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

    /// Returns an optimizer of `model` with the state of the checkpoint.
    ///
    /// Burn loads the state of an optimizer on the host, and moves it to the mesh with the next step: until then each
    /// process holds all of it.
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
        let tensors = self.whole(name, &wants)?;
        let ids = parameters.iter();
        let ids = ids.map(|parameter| (parameter.path.as_str(), parameter.id.val()));
        let record = join_optimizer(name, text, tensors, &ids.collect())?;
        Ok(optimizer.load_record(record))
    }

    /// Reads tensors to the host.
    fn whole(&self, name: &str, wants: &[Want]) -> Result<Vec<TensorData>, StateError> {
        let host: DType = of_burn(Device::default().settings().float_dtype.into());
        let mut all = Vec::with_capacity(wants.len());
        for want in wants {
            if want.dtype != host {
                let reason = format!(
                    "{} is in {}, and Burn loads the state of optimizers in {host}",
                    want.key, want.dtype
                );
                let name = name.to_string();
                return Err(StateError::Mismatch { name, reason });
            }
            let region = Region::whole(&want.shape).map_err(|source| {
                let key = want.key.clone();
                CheckpointError::Region { key, source }
            })?;
            all.push((vec![0; region.numel() * want.dtype.size()], region));
        }
        let requests = all.iter_mut().zip(wants);
        let mut requests: Vec<Request<'_>> = requests
            .map(|((bytes, region), want)| {
                Request::new(&want.key, want.dtype, &want.shape, region.clone(), bytes)
            })
            .collect();
        let options = Options {
            verify: self.opened.options.verify,
            matching: Match::Subset,
            ..Options::default()
        };
        self.opened.checkpoint.load(&mut requests, options)?;
        let data = all.into_iter().zip(wants).map(|((bytes, _), want)| {
            let bytes = Bytes::from_bytes_vec(bytes);
            TensorData::from_bytes(bytes, want.shape.clone(), to_burn(want.dtype))
        });
        Ok(data.collect())
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
