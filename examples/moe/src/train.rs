//! The decoder as a model of the trainer.

use burn::tensor::{Device, Tensor};
use burn_dist::mesh::MeshShape;
use burn_dist::trainer::batch::Batch as _;
use burn_dist::trainer::model::{Loss, Model, Tensors};
use burn_dist::{Parallelize, Plan};

use crate::data::Batch;
use crate::model::{Config, Decoder};

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
}

impl Model for Decoder {
    type Config = Config;
    type Batch = Batch;

    const UNITS: &'static str = "blocks";
    const AXES: &'static [&'static str] = &["ep", "tp"];

    fn build(config: &Config, device: &Device) -> Self {
        config.init(device)
    }

    /// The plan of its attributes, but with experts over the axes that the configuration names, if it names some.
    fn plan_on(&self, _: &MeshShape) -> anyhow::Result<Plan> {
        Ok(match &self.config.experts_over {
            Some(axes) => self.plan().axis(axes).experts("blocks.*.mixture.experts"),
            None => self.plan(),
        })
    }

    fn figures(&self) -> Vec<String> {
        let load = (0..self.config.mixture.experts).map(|expert| format!("load/{expert}"));
        NAMES.map(str::to_string).into_iter().chain(load).collect()
    }

    fn loss(&self, (tokens, next): Tensors<Self>, parts: usize) -> Loss {
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

    fn held_out(&self, (tokens, next): Tensors<Self>) -> [Tensor<1>; 2] {
        let ([rows, seq], device) = (tokens.dims(), tokens.device());
        let count = Tensor::<1>::ones([1], &device) * (rows * seq) as f64;
        let entropy = self.losses(tokens, next).cross_entropy;
        [entropy * count.clone(), count]
    }

    /// The count of a dense decoder (of attention, the keys that are not hidden), with experts on every slot, filled or
    /// not.
    fn flops(config: &Config, (rows, _): &Batch) -> Option<f64> {
        let (tokens, seq) = (rows.count(), rows.count() / rows.rows());
        let (width, layers) = (config.mixture.width, config.layers);
        let weights = layers * 4 * width * width + width * config.vocab;
        let products = 6.0 * (weights * tokens) as f64;
        let attention = 6.0 * (layers * width * (seq + 1) * tokens) as f64;
        let mixtures = layers as f64 * config.mixture.flops(rows.rows(), seq);
        Some(products + attention + mixtures)
    }

    fn facts(config: &Config) -> Vec<(&'static str, String)> {
        config.facts()
    }
}
