//! The loss of the decoder for the trainer, and one step of it: plain Burn, with no word about ranks.

use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use burn_dist::trainer::model::{Loss, Model, Tensors};
use burn_dist::trainer::optimizer::OptimizerConfig;
use burn_dist::trainer::step::{self, Norm};

use crate::data::Batch;
use crate::model::{Config, Decoder};

/// AdamW.
pub const OPTIMIZER: OptimizerConfig = OptimizerConfig {
    beta1: 0.9,
    beta2: 0.98,
    eps: 1e-5,
    weight_decay: 0.01,
};

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

/// Names of the figures before the load.
const NAMES: [&str; 4] = ["cross_entropy", "balance", "z", "dropped"];

impl Figures {
    /// Returns the figures beside a loss.
    pub fn of(loss: f32, figures: &[f32]) -> Self {
        let (of_batch, load) = figures.split_at(NAMES.len());
        Self {
            loss,
            cross_entropy: of_batch[0],
            balance: of_batch[1],
            z: of_batch[2],
            dropped: of_batch[3],
            load: load.to_vec(),
        }
    }

    /// Reads the figures that [`step()`] returns; waits for the step.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn read(figures: Tensor<1>) -> anyhow::Result<Self> {
        let values: Vec<f32> = figures.try_into_data()?.iter::<f32>().collect();
        Ok(Self::of(values[0], &values[1..]))
    }
}

impl Model for Decoder {
    type Config = Config;
    type Batch = Batch;

    const UNITS: &'static str = "blocks";
    const AXES: &'static [&'static str] = &["ep", "tp"];

    fn build(config: &Config, device: &Device) -> Self {
        config.init(device)
    }

    fn figures(&self) -> Vec<String> {
        let experts = 0..self.num_experts();
        let load = experts.map(|expert| format!("load/{expert}"));
        NAMES.map(str::to_string).into_iter().chain(load).collect()
    }

    fn loss(&self, [tokens, next]: Tensors<Self>, parts: usize) -> Loss {
        let losses = self.losses(tokens, next);
        let mean = |value: Tensor<1>| match parts {
            1 => value,
            _ => value / parts as f64,
        };
        let figures = [
            mean(losses.cross_entropy),
            mean(losses.balance),
            mean(losses.z),
            losses.dropped,
            losses.load,
        ];
        Loss {
            value: mean(losses.total),
            figures: Some(Tensor::cat(figures.map(Tensor::inner).into(), 0)),
        }
    }

    fn held_out(&self, [tokens, next]: Tensors<Self>) -> [Tensor<1>; 2] {
        let ([rows, seq], device) = (tokens.dims(), tokens.device());
        let count = Tensor::<1>::ones([1], &device) * (rows * seq) as f64;
        [
            self.losses(tokens, next).cross_entropy * count.clone(),
            count,
        ]
    }

    fn facts(config: &Config) -> Vec<(&'static str, String)> {
        config.facts()
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
    let parts = vec![batch.on(device)];
    let (model, taken) = step::step(model, optim, parts, Norm::Unknown, rate);
    let all = [Some(taken.loss), taken.figures];
    (model, Tensor::cat(all.into_iter().flatten().collect(), 0))
}
