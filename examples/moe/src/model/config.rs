use anyhow::ensure;
use burn::nn::{EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNormConfig};
use burn::tensor::Device;
use burn_dist::nn::mixture::{Capacity, MixtureConfig};
use burn_dist::trainer::args::numbers::check_sizes;

use super::{Attention, Block, Decoder};

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Number of token ids.
    pub vocab: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// The experts of a block; their width is that of the residual.
    pub mixture: MixtureConfig,
    /// Axes that experts are split over in the place of `ep`, the first major.
    pub experts_over: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vocab: crate::data::VOCAB,
            layers: 2,
            heads: 4,
            mixture: MixtureConfig {
                width: 64,
                hidden: 128,
                experts: 8,
                top_k: 2,
                capacity: Capacity::Factor(1.25),
                groups: 1,
                shared: true,
            },
            experts_over: None,
        }
    }
}

impl Config {
    /// Checks that the sizes fit each other.
    ///
    /// # Errors
    /// With the sizes at fault.
    pub fn validate(&self) -> anyhow::Result<()> {
        let (width, heads) = (self.mixture.width, self.heads);
        check_sizes(&[
            ("the number of layers", self.layers),
            ("the number of heads", heads),
        ])?;
        ensure!(
            width.is_multiple_of(heads),
            "width {width} is not a multiple of {heads} heads: choose a number of heads that divides it"
        );
        Ok(())
    }

    /// All that tells it from other models, as names and values.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let own = [
            ("vocabulary", self.vocab.to_string()),
            ("blocks", self.layers.to_string()),
            ("heads", self.heads.to_string()),
        ];
        own.into_iter().chain(self.mixture.facts()).collect()
    }

    /// Builds the model with lazy parameters: nothing is allocated before its first use.
    pub fn init(&self, device: &Device) -> Decoder {
        let d = self.mixture.width;
        // What adds to the residual is the smaller, the more of it there is.
        let additions = 2 * self.layers;
        let linear = |to, additions: usize| -> Linear {
            let std = (d as f64).powf(-0.5) / (additions as f64).sqrt();
            LinearConfig::new(d, to)
                .with_bias(false)
                .with_initializer(Initializer::Normal { mean: 0.0, std })
                .init(device)
        };
        let norm = || RmsNormConfig::new(d).init(device);
        let block = |_| Block {
            attention_norm: norm(),
            attention: Attention {
                query: linear(d, 1),
                key: linear(d, 1),
                value: linear(d, 1),
                output: linear(d, additions),
                heads: self.heads,
            },
            mixture_norm: norm(),
            mixture: self.mixture.init(additions, device),
        };
        Decoder {
            embedding: EmbeddingConfig::new(self.vocab, d).init(device),
            blocks: (0..self.layers).map(block).collect(),
            norm: norm(),
            head: linear(self.vocab, 1),
            config: self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let of = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        let heads = of(|config| config.heads = 3);
        assert!(heads.starts_with("width 64 is not a multiple of 3 heads"));
        let zero = of(|config| config.layers = 0);
        assert!(zero.starts_with("the number of layers is 0"));
    }
}
