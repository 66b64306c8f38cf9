//! The layer, with its parameters.

use burn_core as burn;
use burn_core::module::{Module, Param};
use burn_core::tensor::activation::silu;
use burn_core::tensor::{Device, Tensor};
use burn_nn::{Initializer, Linear, LinearConfig};

use super::config::MixtureConfig;
use super::routing::{Choices, Routing};
use crate::Parallelize;

/// `down(silu(gate x) * up x)`, on every token.
#[derive(Module, Debug, Parallelize)]
pub struct FeedForward {
    #[parallel(colwise)]
    gate: Linear,
    #[parallel(colwise)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

impl FeedForward {
    /// Applies it.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(self.gate.forward(x.clone()));
        self.down.forward(gate * self.up.forward(x))
    }
}

/// Feed-forward layers side by side, each with weights of its own: `down(silu(gate x) * up x)`.
#[derive(Module, Debug, Parallelize)]
pub struct Experts {
    /// `[e, d, f]`
    #[parallel(experts)]
    gate: Param<Tensor<3>>,
    /// `[e, d, f]`
    #[parallel(experts)]
    up: Param<Tensor<3>>,
    /// `[e, f, d]`
    #[parallel(experts)]
    down: Param<Tensor<3>>,
}

impl Experts {
    /// Applies each expert to its slots.
    ///
    /// # Shapes
    /// Input and output: `[e, g c, d]`.
    /// # Communication
    /// Weights are split along `e`, slots come in split along `g`: an all-to-all before the experts. What comes out is
    /// split along `e` still.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(x.clone().matmul(self.gate.val()));
        (gate * x.matmul(self.up.val())).matmul(self.down.val())
    }
}

/// A layer in which a router sends every token to some of the experts.
///
/// # Source
/// Mixtral (arXiv:2401.04088, section 2.1); slots as in GShard (arXiv:2006.16668, section 2.2).
#[derive(Module, Debug, Parallelize)]
pub struct Mixture {
    #[parallel(replicate)]
    router: Linear,
    experts: Experts,
    shared: Option<FeedForward>,
    #[module(skip)]
    config: MixtureConfig,
}

/// The output of a [`Mixture`].
pub struct Mixed {
    /// `[b, s, d]`
    pub output: Tensor<3>,
    /// 1 if all experts are chosen alike, up to the number of experts if one is: `[1]`. The mean over groups of
    /// `e x sum over experts of share of pairs x mean probability` (Switch, arXiv:2101.03961, equation 4).
    pub balance: Tensor<1>,
    /// The mean of the squared log-sum-exp of the router's logits (ST-MoE, arXiv:2202.08906, equation 5): `[1]`.
    pub z: Tensor<1>,
    /// Pairs of a token and a choice that each expert was chosen for, dropped or not: `[e]`.
    pub load: Tensor<1>,
    /// Pairs that were dropped: `[1]`.
    pub dropped: Tensor<1>,
}

impl Mixture {
    /// Its sizes.
    pub fn config(&self) -> &MixtureConfig {
        &self.config
    }

    /// Sends tokens to their experts, and adds up what these make of them.
    ///
    /// # Shapes
    /// Input: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<3>) -> Mixed {
        let [b, s, d] = x_bsd.dims();
        let (n, e) = (self.config.groups, self.config.experts);
        let (g, t) = (n * b, s / n);
        // The tokens of a group are n apart, as those of a rank are over which sequences are split. Groups of all
        // sequences, those at one place of their sequence together: where each of several ranks has one group of every
        // sequence, its groups follow each other.
        let groups = x_bsd.clone().reshape([b, t, n, d]).permute([2, 0, 1, 3]);
        let x_gtd = groups.reshape([g, t, d]);
        let logits_gte = self.router.forward(x_gtd.clone());
        // Any shift leaves the sum alone: the largest logit keeps the exponentials finite and needs no gradient.
        let shift_gt1 = logits_gte.clone().detach().max_dim(2);
        let sum_gt1 = (logits_gte.clone() - shift_gt1.clone()).exp().sum_dim(2);
        let log_sum_gt1 = sum_gt1.log() + shift_gt1;
        let probabilities = (logits_gte - log_sum_gt1.clone()).exp();

        let choices = Choices::top_k(probabilities.clone(), self.config.top_k);
        let routing = Routing::new(choices.expert, e, self.config.slots(t));
        let y = self.experts.forward(routing.dispatch(x_gtd));
        let y_gtd = routing.combine(y, choices.gate, t);
        let y = y_gtd.reshape([n, b, t, d]).permute([1, 2, 0, 3]);
        let mut output = y.reshape([b, s, d]);
        if let Some(shared) = &self.shared {
            output = output + shared.forward(x_bsd);
        }

        let chosen = routing.chosen.clone();
        let share = chosen.clone().mean_dim(1) * probabilities.mean_dim(1);
        let load = chosen.sum_dim(1).sum_dim(0).reshape([e]);
        Mixed {
            output,
            balance: share.sum_dim(2).mean() * e as f64,
            z: log_sum_gt1.powi_scalar(2).mean(),
            load,
            dropped: (-routing.kept + 1.0).sum(),
        }
    }
}

impl MixtureConfig {
    /// Makes the layer, with parameters that are made on first use; what is added to a residual is divided by the root
    /// of `additions`, of which a model has so many.
    pub fn init(&self, additions: usize, device: &Device) -> Mixture {
        let normal = |from: usize, additions: usize| Initializer::Normal {
            mean: 0.0,
            std: (from as f64).powf(-0.5) / (additions as f64).sqrt(),
        };
        let linear = |from, to, additions| -> Linear {
            LinearConfig::new(from, to)
                .with_bias(false)
                .with_initializer(normal(from, additions))
                .init(device)
        };
        let (d, f, e) = (self.width, self.hidden, self.experts);
        let stacked = |from, to, additions| -> Param<Tensor<3>> {
            normal(from, additions).init([e, from, to], device)
        };
        Mixture {
            router: linear(d, e, 1),
            experts: Experts {
                gate: stacked(d, f, 1),
                up: stacked(d, f, 1),
                down: stacked(f, d, additions),
            },
            shared: self.shared.then(|| FeedForward {
                gate: linear(d, f, 1),
                up: linear(d, f, 1),
                down: linear(f, d, additions),
            }),
            config: self.clone(),
        }
    }
}
