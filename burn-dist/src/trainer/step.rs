//! One step: microbatches, accumulation of their gradients, clipping, the optimizer.

use burn_core::tensor::{Device, Tensor};
use burn_optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};

use super::batch::Batch;
use super::model::{Model, Tensors};
use super::optimizer::OptimizerConfig;
use crate::optim::{clip_grad_norm, grad_norm};

/// How a step is taken, besides the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// Microbatches that a batch is cut into; has to divide its rows.
    pub accumulate: usize,
    /// The largest norm of all gradients together.
    pub clip: Option<f32>,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            accumulate: 1,
            clip: None,
            optimizer: OptimizerConfig::default(),
        }
    }
}

/// The use of the norm of a step's gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// It is not computed.
    Unknown,
    /// It is computed, and changes nothing.
    Known,
    /// It is at most this.
    Clipped(f32),
}

impl Norm {
    /// Returns the use of it that `clip` asks for, or else a wish to know it.
    pub fn of(clip: Option<f32>, is_wanted: bool) -> Self {
        match clip {
            Some(max) => Self::Clipped(max),
            None if is_wanted => Self::Known,
            None => Self::Unknown,
        }
    }
}

/// The numbers of a step, before its update and not yet read.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The loss.
    pub loss: Tensor<1>,
    /// The norm of the gradients, if it was computed.
    pub norm: Option<Tensor<1>>,
    /// The figures beside the loss, if the model has some.
    pub figures: Option<Tensor<1>>,
}

/// Takes one optimizer step on microbatches that are on the device: their gradients are those of the batch, to
/// rounding.
///
/// # Panics
/// If there is no microbatch.
pub fn step<M: Model>(
    model: M,
    optim: &mut ModuleOptimizer,
    parts: Vec<Tensors<M>>,
    norm: Norm,
    rate: f64,
) -> (M, Taken) {
    let count = parts.len();
    let mut accumulator = GradientsAccumulator::new();
    let (mut loss, mut figures) = (None, None);
    for part in parts {
        let of_part = model.loss(part, count);
        let gradients = GradientsParams::from_grads(of_part.value.backward(), &model);
        accumulator.accumulate(&model, gradients);
        loss = sum(loss, Some(of_part.value.inner()));
        figures = sum(figures, of_part.figures);
    }
    let mut gradients = accumulator.grads();
    let norm = match norm {
        Norm::Unknown => None,
        Norm::Known => Some(grad_norm(&model, &gradients)),
        Norm::Clipped(max) => {
            let (clipped, norm) = clip_grad_norm(&model, gradients, max);
            gradients = clipped;
            Some(norm)
        }
    };
    let taken = Taken {
        loss: loss.expect("a batch has a part"),
        norm,
        figures,
    };
    (optim.step(rate, model, gradients), taken)
}

/// Takes one step on a batch, all of whose rows are here; returns the model, and the loss before it with the figures
/// beside it, not yet read.
pub fn one<M: Model>(
    model: M,
    optim: &mut ModuleOptimizer,
    batch: &M::Batch,
    rate: f64,
    device: &Device,
) -> (M, Tensor<1>) {
    one_with(model, optim, batch, Recipe::default(), rate, device)
}

/// Does the same as [`one()`], by a recipe: gradients of the microbatches are those of the batch, to rounding.
///
/// # Panics
/// If the number of microbatches does not divide that of rows.
pub fn one_with<M: Model>(
    model: M,
    optim: &mut ModuleOptimizer,
    batch: &M::Batch,
    recipe: Recipe,
    rate: f64,
    device: &Device,
) -> (M, Tensor<1>) {
    let parts = batch.split(recipe.accumulate);
    let parts = parts.iter().map(|part| part.enter(device, false));
    let parts = parts.collect::<Result<_, _>>();
    let parts = parts.expect("rows that are all here are what a mesh expects");
    let (model, taken) = step(model, optim, parts, Norm::of(recipe.clip, false), rate);
    let read = match taken.figures {
        Some(figures) => Tensor::cat(vec![taken.loss, figures], 0),
        None => taken.loss,
    };
    (model, read)
}

/// A sum, of which the first may not be there yet.
fn sum(before: Option<Tensor<1>>, more: Option<Tensor<1>>) -> Option<Tensor<1>> {
    match (before, more) {
        (Some(before), Some(more)) => Some(before + more),
        (before, more) => before.or(more),
    }
}
