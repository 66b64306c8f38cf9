//! A checkpoint of a training run, and loading from it.

use std::sync::Mutex;

use burn_core::module::{AutodiffModule, Module};
use burn_core::record::Record;
use burn_core::tensor::backend::AutodiffBackend;
use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{Checkpoint, CheckpointError, KeyReport, Match, Mismatch};
use burn_optim::Optimizer;
use burn_optim::lr_scheduler::LrScheduler;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::StateError;
use super::checkpointer::{ENTRY, STATE_VERSION};
use super::load_record::load_record;
use super::parameters::{Parameter, parameters};
use super::read::{ByteCount, Reader, Source};
use super::restore::restore;
use super::state::{MODULES, RECORDS, VALUES};
use crate::mesh::MeshShape;
use crate::parallel::MeshBackend;

/// A checkpoint of a training run, to be loaded onto the mesh of its [`Checkpointer`](super::Checkpointer), whatever
/// mesh it was saved from. Each process reads what its ranks hold.
pub struct Saved<B: MeshBackend> {
    step: u64,
    checkpoint: Checkpoint,
    device: B::Device,
    mesh: MeshShape,
    options: LoadOptions,
}

/// How a checkpoint is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Which differences between a module and the checkpoint are errors.
    pub matching: Match,
    /// Converts tensors of another type than the module's; without it they are errors.
    pub convert: bool,
    /// Verifies checksums.
    pub verify: bool,
}

/// Any difference is an error, and checksums are verified.
impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            matching: Match::Exact,
            convert: false,
            verify: true,
        }
    }
}

impl<B: MeshBackend> Saved<B> {
    pub(super) fn new(
        step: u64,
        checkpoint: Checkpoint,
        device: B::Device,
        mesh: MeshShape,
    ) -> Result<Self, StateError> {
        let saved = Self {
            step,
            checkpoint,
            device,
            mesh,
            options: LoadOptions::default(),
        };
        match saved.entry().get("version").and_then(Value::as_u64) {
            Some(version) if version <= STATE_VERSION => Ok(saved),
            Some(version) => Err(StateError::Mismatch {
                name: ENTRY.into(),
                reason: format!(
                    "it has version {version}, and this program reads up to {STATE_VERSION}: update burn-dist"
                ),
            }),
            None => Err(StateError::Mismatch {
                name: ENTRY.into(),
                reason: "the metadata have no such entry: it was not saved by a `Checkpointer`"
                    .into(),
            }),
        }
    }

    /// Sets how it is loaded.
    pub fn options(mut self, options: LoadOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the step that it was saved under.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns its files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
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
        let saved = self.named("module", MODULES, name)?;
        let paths = saved.as_array().map_or(&[][..], Vec::as_slice);
        let paths: Vec<&str> = paths.iter().filter_map(Value::as_str).collect();
        let parameters = parameters::<B>(&module);
        let report = self.compare(name, &parameters, &paths);
        if !report.is_fine(self.options.matching) {
            return Err(CheckpointError::Keys(Box::new(report)).into());
        }
        let wants = parameters.iter().map(|parameter| {
            let key = format!("{name}.{}", parameter.path);
            report
                .fits(&key)
                .then(|| parameter.want(key, Form::Same, &self.mesh))
        });
        let wants = wants.collect();
        let module = restore(module, &parameters, wants, &self.reader())?;
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
        let value = self.named("value", VALUES, name)?.clone();
        serde_json::from_value(value).map_err(|error| StateError::Mismatch {
            name: name.to_string(),
            reason: error.to_string(),
        })
    }

    /// Has the mesh draw the random numbers that it would have drawn after the save. Once everything else is loaded
    /// and made: what is drawn afterwards counts.
    ///
    /// # Errors
    /// [`StateError::Mismatch`].
    pub fn restore_random(&self) -> Result<(), StateError> {
        let random = self.entry().get("random").cloned().unwrap_or_default();
        let number = |name: &str| random.get(name).and_then(Value::as_u64);
        let (Some(seed), Some(streams)) = (number("seed"), number("streams")) else {
            return Err(StateError::Mismatch {
                name: "random".into(),
                reason: format!("it is {random}, not a seed and a number of streams"),
            });
        };
        B::set_random_state(&self.device, (seed, streams));
        Ok(())
    }

    fn entry(&self) -> &Value {
        let metadata = &self.checkpoint.manifest().metadata;
        metadata.get(ENTRY).unwrap_or(&Value::Null)
    }

    fn named(&self, kind: &'static str, folder: &str, name: &str) -> Result<&Value, StateError> {
        let named = self.entry().get(folder).and_then(Value::as_object);
        named.and_then(|named| named.get(name)).ok_or_else(|| {
            let names: Vec<String> = named
                .into_iter()
                .flat_map(|named| named.keys())
                .map(|name| format!("`{name}`"))
                .collect();
            StateError::NoSuch {
                kind,
                name: name.to_string(),
                found: match names.is_empty() {
                    true => "none".into(),
                    false => names.join(", "),
                },
            }
        })
    }

    fn joined<R: Record<B>>(&self, name: &str, parameters: &[Parameter]) -> Result<R, StateError> {
        let text = self.named("record", RECORDS, name)?.clone();
        load_record::<B, R>(name, text, parameters, &self.checkpoint, &self.reader())
    }

    fn compare(&self, name: &str, parameters: &[Parameter], paths: &[&str]) -> KeyReport {
        let manifest = self.checkpoint.manifest();
        let mut report = KeyReport::default();
        for parameter in parameters {
            let key = format!("{name}.{}", parameter.path);
            let Some(found) = manifest.tensor(&key) else {
                report.missing.push(key);
                continue;
            };
            let is_type = found.dtype() == Some(parameter.dtype) || self.options.convert;
            if found.shape != parameter.shape || !is_type {
                report.mismatched.push(Mismatch {
                    key,
                    wanted_shape: parameter.shape.clone(),
                    found_shape: found.shape.clone(),
                    wanted_dtype: parameter.dtype,
                    found_dtype: found.dtype.clone(),
                });
            }
        }
        let is_known = |path: &&&str| parameters.iter().all(|parameter| parameter.path != **path);
        let unexpected = paths.iter().filter(is_known);
        report.unexpected = unexpected.map(|path| format!("{name}.{path}")).collect();
        report
    }

    fn reader(&self) -> Reader<'_, B> {
        Reader {
            source: Source::Checkpoint(&self.checkpoint),
            device: &self.device,
            mesh: &self.mesh,
            options: self.options,
            count: ByteCount::default(),
            non_finite: Mutex::default(),
        }
    }
}
