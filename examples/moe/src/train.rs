//! The training loop: plain Burn, with no word about ranks.

use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::data::Batch;
use crate::model::Decoder;

/// Makes a fresh AdamW.
pub fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new()
        .with_beta_2(0.98)
        .with_weight_decay(0.01)
        .init()
}

/// The figures of a step, before its update.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The loss that is trained on.
    pub loss: f32,
    /// Mean cross entropy.
    pub cross_entropy: f32,
    /// 1 if experts are chosen alike.
    pub balance: f32,
    /// Mean squared log-sum-exp of the router's logits.
    pub z: f32,
    /// Pairs of a token and a choice that were dropped, of all blocks.
    pub dropped: f32,
    /// Pairs that each expert of the first block was chosen for.
    pub load: Vec<f32>,
}

impl Figures {
    /// Reads the figures that [`step`] returns; waits for the step.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn read(figures: Tensor<1>) -> anyhow::Result<Self> {
        let values: Vec<f32> = figures.try_into_data()?.iter::<f32>().collect();
        let (losses, load) = values.split_at(5);
        Ok(Self {
            loss: losses[0],
            cross_entropy: losses[1],
            balance: losses[2],
            z: losses[3],
            dropped: losses[4],
            load: load.to_vec(),
        })
    }
}

/// Takes one optimizer step; returns the model and its figures, not yet read.
pub fn step(
    model: Decoder,
    optim: &mut ModuleOptimizer,
    batch: &Batch,
    rate: f64,
    device: &Device,
) -> (Decoder, Tensor<1>) {
    let [tokens, next] = batch.on(device);
    let losses = model.losses(tokens, next);
    let gradients = GradientsParams::from_grads(losses.total.backward(), &model);
    let figures = [
        losses.total,
        losses.cross_entropy,
        losses.balance,
        losses.z,
        losses.dropped,
        losses.load,
    ];
    let figures = figures.into_iter().map(Tensor::inner).collect();
    let model = optim.step(rate, model, gradients);
    (model, Tensor::cat(figures, 0))
}
