//! A model as the trainer sees it.

use burn_core::module::Module;
use burn_core::tensor::{Device, Tensor};

use super::batch::Batch;
use crate::mesh::MeshShape;
use crate::{Parallelize, Plan};

/// A model that can be trained: all that the trainer asks of one.
///
/// It says what it is, never how it is trained: steps, accumulation, validation, checkpoints and figures are the
/// trainer's, the mesh and the policy those of the run.
///
/// # Source
/// torchtitan's `ModelProtocol` and `TrainSpec`, which ask for the same of a model. Differs: how a model is split is a
/// plan, in place of functions that change the model, and its flops are counted by the planner, which compares them
/// with what the model says.
pub trait Model: Module + Parallelize {
    /// Its sizes.
    type Config: Clone + std::fmt::Debug + 'static;
    /// The rows of a step.
    type Batch: Batch + 'static;

    /// The path of the list of modules that the model is made of: `layers`. Stages by cost are cut from it. A model
    /// that has no such list is refused where it is laid out.
    const UNITS: &'static str = "";
    /// Names of the axes that tensors of the model are split over, beside those of rows, sequences and stages: `tp`. A
    /// mesh with another one would have ranks that all do the same, and is refused; so is one of these that splits no
    /// parameter.
    const AXES: &'static [&'static str] = &["tp"];
    /// The model and its data by the options of the program, for messages.
    const WORDS: Words = Words::NONE;

    /// Builds the model with parameters that are made on first use.
    fn build(config: &Self::Config, device: &Device) -> Self;

    /// Returns how it lies on a mesh: what its attributes say.
    ///
    /// # Errors
    /// If it cannot lie on that mesh.
    fn plan_on(&self, _mesh: &MeshShape) -> anyhow::Result<Plan> {
        Ok(self.plan())
    }

    /// Returns the names of the figures that come with a loss.
    fn figures(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the loss of one of `parts` microbatches of a step, so that the losses of all of them add up to that of
    /// the step.
    fn loss(&self, part: Tensors<Self>, parts: usize) -> Loss;

    /// Returns the sum of the losses of what is held out, and how many these are.
    fn held_out(&self, part: Tensors<Self>) -> [Tensor<1>; 2];

    /// Returns the flops of a training step on these rows by the model's own formula, if it has one: those of products,
    /// forward and backward, each once. Where a step is planned, a formula that is far from what the planner counts is
    /// warned of; figures are by the planner.
    fn flops(_config: &Self::Config, _rows: &Self::Batch) -> Option<f64> {
        None
    }

    /// Returns the sizes of a model with so many modules in its list, and the same as this one else, if there is one:
    /// a search for a mesh looks at such models first, which are planned in less time.
    fn cut(_config: &Self::Config, _units: usize) -> Option<Self::Config> {
        None
    }

    /// Returns all that tells a model of these sizes from others, as names and values: what goes on with its weights
    /// has to have the same.
    fn facts(config: &Self::Config) -> Vec<(&'static str, String)>;
}

/// A microbatch of a model on a device.
pub type Tensors<M> = <<M as Model>::Batch as Batch>::Tensors;

/// The loss of a microbatch.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The number that is trained on: `[1]`.
    pub value: Tensor<1>,
    /// Figures beside it, one for each name of [`Model::figures`]: those of all microbatches are added up too. They
    /// have no gradients ([`Tensor::inner`]), and are read along with the loss.
    pub figures: Option<Tensor<1>>,
}

impl From<Tensor<1>> for Loss {
    /// A loss without figures.
    fn from(value: Tensor<1>) -> Self {
        Self {
            value,
            figures: None,
        }
    }
}

/// The options of a program that name a model and its data, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// The options that say which model it is, in parentheses after what differs: ` (--size, --model)`.
    pub model: &'static str,
    /// The things that have to be named again where a run goes on: `the model, the data, --seq and --seed`.
    pub again: &'static str,
    /// Settings that need less memory than a training step that does not fit.
    pub remedies: &'static str,
}

impl Words {
    /// No options.
    pub const NONE: Self = Self {
        model: "",
        again: "the model, the data and the seed",
        remedies: "fewer ranks on it (a smaller --mesh, or more machines), a smaller --batch, --accumulate, \
                   --activation-checkpoint full, or a smaller model",
    };
}
