//! The optimizer of every phase: Burn's AdamW.

use burn_optim::{AdamWConfig, ModuleOptimizer};

/// The settings of AdamW, besides the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerConfig {
    /// How slowly the mean of gradients forgets, from 0 to below 1.
    pub beta1: f32,
    /// How slowly the mean of their squares forgets.
    pub beta2: f32,
    /// Added to the root of the latter.
    pub eps: f32,
    /// The share of a weight that is taken away in a step, times the rate.
    pub weight_decay: f32,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
        }
    }
}

impl OptimizerConfig {
    /// Makes a fresh AdamW.
    pub fn init(&self) -> ModuleOptimizer {
        AdamWConfig::new()
            .with_beta_1(self.beta1)
            .with_beta_2(self.beta2)
            .with_epsilon(self.eps)
            .with_weight_decay(self.weight_decay)
            .init()
    }
}

/// Makes a fresh AdamW with the settings of most Llamas.
pub fn optimizer() -> ModuleOptimizer {
    OptimizerConfig::default().init()
}
