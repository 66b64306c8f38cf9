//! The state of a training run, as it is saved.

use burn_core::module::Module;
use burn_optim::ModuleOptimizer;
use serde::Serialize;
use serde_json::{Map, Value};

use super::StateError;
use super::parameters::{parameters, take_parameters};
use super::record::{part_optimizer, part_scheduler};
use super::scheduler::Scheduler;
use crate::bridge::mesh_device;
use crate::record::parts::Taken;

/// The state of a training run to save: modules, optimizers, schedulers, and values of the program, each under a name.
///
/// It holds handles, no copies. What is trained after it was put together is not in it.
///
/// Tensors are saved under the name, followed by their path: `model.layers.0.wq.weight`,
/// `optimizer.layers.0.wq.weight.momentum.moment_1`.
#[must_use = "a state is saved by a `Checkpointer`"]
pub struct State {
    pub(super) tensors: Vec<(String, Box<dyn Taken>)>,
    /// By kind and name.
    pub(super) texts: Map<String, Value>,
    /// The first error.
    error: Option<StateError>,
}

/// The kinds of things that have names.
pub(super) const MODULES: &str = "modules";
pub(super) const RECORDS: &str = "records";
pub(super) const VALUES: &str = "values";

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Creates one of nothing. Random numbers are part of every checkpoint.
    pub fn new() -> Self {
        Self {
            tensors: Vec::new(),
            texts: Map::new(),
            error: None,
        }
    }

    /// Adds the parameters of a module: a model, or the average of one
    /// ([`Ema::model`](crate::optim::Ema::model)). A parameter that has no value yet gets one. Running statistics
    /// (`BatchNorm`) are those after the last forward, as in the module's record.
    pub fn module(mut self, name: &str, module: &impl Module) -> Self {
        match take_parameters(module) {
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
    pub fn optimizer(
        mut self,
        name: &str,
        optimizer: &ModuleOptimizer,
        model: &impl Module,
    ) -> Self {
        let ids = parameters(model).into_iter();
        let ids = ids.map(|parameter| (parameter.id.val(), parameter.path));
        let device = model.devices().into_iter().next();
        let mesh = device.as_ref().and_then(mesh_device);
        match part_optimizer(name, optimizer, &ids.collect(), mesh) {
            Ok(parted) => {
                self.name(RECORDS, name, parted.text);
                self.tensors.extend(parted.tensors);
            }
            Err(error) => self.fail(error),
        }
        self
    }

    /// Adds the state of a learning-rate scheduler, of one for a model too (`ModuleLrScheduler`).
    pub fn scheduler(mut self, name: &str, scheduler: &impl Scheduler) -> Self {
        match part_scheduler(name, scheduler.record()) {
            Ok(text) => self.name(RECORDS, name, text),
            Err(error) => self.fail(error),
        }
        self
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
