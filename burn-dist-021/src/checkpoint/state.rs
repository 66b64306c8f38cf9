//! The state of a training run, as it is saved.

use std::collections::HashMap;
use std::marker::PhantomData;

use burn_core::module::{AutodiffModule, Module};
use burn_core::record::Record;
use burn_core::tensor::backend::AutodiffBackend;
use burn_optim::Optimizer;
use burn_optim::lr_scheduler::LrScheduler;
use serde::Serialize;
use serde_json::{Map, Value};

use super::StateError;
use super::parameters::{parameters, take_parameters};
use super::record::part;
use crate::parallel::MeshBackend;
use crate::record::parts::Taken;

/// The state of a training run to save: modules, optimizers, schedulers, and values of the program, each under a name.
///
/// It holds handles, no copies. What is trained after it was put together is not in it.
///
/// Tensors are saved under the name, followed by their path: `model.layers.0.wq.weight`,
/// `optimizer.layers.0.wq.weight.momentum.moment_1`.
#[must_use = "a state is saved by a `Checkpointer`"]
pub struct State<B> {
    pub(super) tensors: Vec<(String, Box<dyn Taken>)>,
    /// By kind and name.
    pub(super) texts: Map<String, Value>,
    /// The first error.
    error: Option<StateError>,
    backend: PhantomData<B>,
}

/// The kinds of things that have names.
pub(super) const MODULES: &str = "modules";
pub(super) const RECORDS: &str = "records";
pub(super) const VALUES: &str = "values";

impl<B: MeshBackend> Default for State<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: MeshBackend> State<B> {
    /// Creates one of nothing. Random numbers are part of every checkpoint.
    pub fn new() -> Self {
        Self {
            tensors: Vec::new(),
            texts: Map::new(),
            error: None,
            backend: PhantomData,
        }
    }

    /// Adds the parameters of a module: a model, or the average of one
    /// ([`Ema::model`](crate::optim::Ema::model)). A parameter that has no value yet gets one. Running statistics
    /// (`BatchNorm`) are those after the last forward, as in the module's record.
    pub fn module(mut self, name: &str, module: &impl Module<B>) -> Self {
        match take_parameters::<B>(module) {
            Ok(taken) => {
                let paths = taken.iter().map(|(path, _)| path.clone().into()).collect();
                self.name(MODULES, name, Value::Array(paths));
                let each = taken.into_iter();
                let each = each.map(|(path, tensor)| (format!("{name}.{path}"), tensor));
                self.tensors.extend(each);
            }
            Err(unsaved) => self.fail(StateError::Unsaved {
                name: format!("{name}.{}", unsaved.path),
                reason: unsaved.reason,
            }),
        }
        self
    }

    /// Adds the state of an optimizer of `model`.
    pub fn optimizer<M, O>(self, name: &str, optimizer: &O, model: &M) -> Self
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let ids = parameters::<B>(model).into_iter();
        let ids = ids.map(|parameter| (parameter.id.serialize(), parameter.path));
        self.parted(name, optimizer.to_record(), &ids.collect())
    }

    /// Adds the state of a learning-rate scheduler.
    pub fn scheduler(self, name: &str, scheduler: &impl LrScheduler) -> Self {
        self.record(name, scheduler.to_record::<B>())
    }

    /// Adds any record of Burn's; its tensors stay on the ranks.
    pub fn record(self, name: &str, record: impl Record<B>) -> Self {
        self.parted(name, record, &HashMap::new())
    }

    /// Adds a value of the program: a step, a position in the data, a [`LossScaler`](crate::optim::LossScaler).
    ///
    /// In several processes, what process 0 says is saved.
    pub fn value(mut self, name: &str, value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => self.name(VALUES, name, value),
            Err(error) => self.fail(StateError::Unsaved {
                name: name.to_string(),
                reason: error.to_string(),
            }),
        }
        self
    }

    fn parted(mut self, name: &str, record: impl Record<B>, ids: &HashMap<String, String>) -> Self {
        match part::<B, _>(name, record, ids) {
            Ok(parted) => {
                self.name(RECORDS, name, parted.text);
                self.tensors.extend(parted.tensors);
            }
            Err(error) => self.fail(error),
        }
        self
    }

    fn name(&mut self, kind: &'static str, name: &str, text: Value) {
        let kind = self.texts.entry(kind).or_insert_with(|| Map::new().into());
        let Some(named) = kind.as_object_mut() else {
            return;
        };
        if named.insert(name.to_string(), text).is_some() {
            let name = name.to_string();
            self.fail(StateError::Name { name });
        }
    }

    fn fail(&mut self, error: StateError) {
        self.error.get_or_insert(error);
    }

    /// Returns what went wrong first while it was put together.
    pub(super) fn check(&mut self) -> Result<(), StateError> {
        self.error.take().map_or(Ok(()), Err)
    }
}
