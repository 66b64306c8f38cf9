use anyhow::ensure;
use burn::module::Param;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::tensor::{Device, Tensor};

use super::{Attention, Block, Decoder, Experts, FeedForward, Mixture};

/// How many slots an expert has in a group of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Capacity {
    /// This many times what it would take if all experts were chosen alike; what does not fit is dropped.
    Factor(f64),
    /// One for each token of the group: the worst case, so that nothing is dropped.
    Dropless,
}

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Number of token ids.
    pub vocab: usize,
    /// Width of the residual.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Width inside an expert.
    pub hidden: usize,
    /// Experts of a block.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Slots of an expert.
    pub capacity: Capacity,
    /// Groups of tokens in a sequence, which are dealt to them in turn. Tokens compete for slots with those of their group alone.
    pub groups: usize,
    /// True if a feed-forward layer works on every token beside the experts.
    pub shared: bool,
    /// Axes that experts are split over in the place of `ep`, the first major.
    pub experts_over: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vocab: crate::data::VOCAB,
            width: 64,
            layers: 2,
            heads: 4,
            hidden: 128,
            experts: 8,
            top_k: 2,
            capacity: Capacity::Factor(1.25),
            groups: 1,
            shared: true,
            experts_over: None,
        }
    }
}

impl Config {
    /// Checks that the sizes fit each other, for sequences of `seq` tokens.
    ///
    /// # Errors
    /// With the sizes at fault.
    pub fn validate(&self, seq: usize) -> anyhow::Result<()> {
        let sizes = [
            ("the vocabulary", self.vocab),
            ("the width", self.width),
            ("the number of layers", self.layers),
            ("the number of heads", self.heads),
            ("the width inside an expert", self.hidden),
            ("the number of experts", self.experts),
            ("the number of experts of a token", self.top_k),
            ("the number of groups", self.groups),
            ("the length of a sequence", seq),
        ];
        for (what, size) in sizes {
            ensure!(
                size > 0,
                "{what} is 0: every size of a model must be at least 1"
            );
        }
        let (experts, top_k) = (self.experts, self.top_k);
        ensure!(
            top_k <= experts,
            "a token cannot choose {top_k} of {experts} experts: use --top-k {experts} or less, or more experts"
        );
        if let Capacity::Factor(factor) = self.capacity {
            ensure!(
                factor > 0.0 && factor.is_finite(),
                "capacity factor {factor} leaves an expert no slot: use a number above 0 (1.25 is usual), or --dropless"
            );
        }
        let (width, heads, groups) = (self.width, self.heads, self.groups);
        ensure!(
            width.is_multiple_of(heads),
            "width {width} is not a multiple of {heads} heads: choose a number of heads that divides it"
        );
        ensure!(
            seq.is_multiple_of(groups),
            "a sequence of {seq} tokens cannot be cut into {groups} equal groups: choose --groups that divide it"
        );
        Ok(())
    }

    /// Returns the slots of an expert in a group of `tokens`: at least 1, and not more than there are tokens, as no token
    /// chooses an expert twice.
    pub fn slots(&self, tokens: usize) -> usize {
        match self.capacity {
            Capacity::Factor(factor) => {
                let even = (self.top_k * tokens) as f64 / self.experts as f64;
                ((factor * even).ceil() as usize).clamp(1, tokens)
            }
            Capacity::Dropless => tokens,
        }
    }

    /// Returns the bytes that cross between ranks for the experts of one block, in one direction of one pass, summed over
    /// all ranks: dispatch or combine, forward or backward. `parts` ranks share the experts.
    ///
    /// `experts x slots x groups x width x bytes x (parts - 1) / parts`: groups are the model's, so that it does not
    /// depend on the mesh but by `parts`.
    pub fn exchanged_bytes(
        &self,
        batch: usize,
        seq: usize,
        parts: usize,
        elem_bytes: usize,
    ) -> u64 {
        let slots = self.slots(seq / self.groups) * self.groups * batch;
        let all = (self.experts * slots * self.width * elem_bytes) as u64;
        all * (parts as u64 - 1) / parts as u64
    }

    /// Returns what experts compute with every slot filled, over what the chosen pairs take: what padding costs.
    pub fn padding(&self, seq: usize) -> f64 {
        let tokens = seq / self.groups;
        (self.experts * self.slots(tokens)) as f64 / (self.top_k * tokens) as f64
    }

    /// All that tells it from other models, as names and values.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("vocabulary", self.vocab.to_string()),
            ("width", self.width.to_string()),
            ("blocks", self.layers.to_string()),
            ("heads", self.heads.to_string()),
            ("width inside an expert", self.hidden.to_string()),
            ("experts", self.experts.to_string()),
            ("experts of a token", self.top_k.to_string()),
            ("capacity", format!("{:?}", self.capacity)),
            ("groups", self.groups.to_string()),
            ("shared layer", self.shared.to_string()),
        ]
    }

    /// Builds the model with lazy parameters: nothing is allocated before its first use.
    pub fn init(&self, device: &Device) -> Decoder {
        let normal = |from: usize, layers: usize| Initializer::Normal {
            mean: 0.0,
            std: (from as f64).powf(-0.5) / (layers as f64).sqrt(),
        };
        let linear = |from, to, layers| -> Linear {
            LinearConfig::new(from, to)
                .with_bias(false)
                .with_initializer(normal(from, layers))
                .init(device)
        };
        let norm = || -> RmsNorm { RmsNormConfig::new(self.width).init(device) };
        let (d, f, e) = (self.width, self.hidden, self.experts);
        // What adds to the residual is the smaller, the more of it there is.
        let deep = 2 * self.layers;
        let stacked = |from, to, layers| -> Param<Tensor<3>> {
            normal(from, layers).init([e, from, to], device)
        };
        let block = |_| Block {
            attention_norm: norm(),
            attention: Attention {
                query: linear(d, d, 1),
                key: linear(d, d, 1),
                value: linear(d, d, 1),
                output: linear(d, d, deep),
                heads: self.heads,
            },
            mixture_norm: norm(),
            mixture: Mixture {
                router: linear(d, e, 1),
                experts: Experts {
                    gate: stacked(d, f, 1),
                    up: stacked(d, f, 1),
                    down: stacked(f, d, deep),
                },
                shared: self.shared.then(|| FeedForward {
                    gate: linear(d, f, 1),
                    up: linear(d, f, 1),
                    down: linear(f, d, deep),
                }),
                config: self.clone(),
            },
        };
        let embedding: Embedding = EmbeddingConfig::new(self.vocab, d).init(device);
        Decoder {
            embedding,
            blocks: (0..self.layers).map(block).collect(),
            norm: norm(),
            head: linear(d, self.vocab, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let base = Config::default();
        assert!(base.validate(32).is_ok());
        let of = |config: Config| config.validate(32).unwrap_err().to_string();
        let none = |capacity| Config {
            capacity,
            ..base.clone()
        };
        let too_many = Config {
            top_k: 9,
            ..base.clone()
        };
        assert!(of(too_many).starts_with("a token cannot choose 9 of 8 experts"));
        for factor in [0.0, -1.0, f64::INFINITY] {
            assert!(of(none(Capacity::Factor(factor))).contains("leaves an expert no slot"));
        }
        let groups = Config {
            groups: 3,
            ..base.clone()
        };
        assert!(of(groups).starts_with("a sequence of 32 tokens cannot be cut into 3"));
        let zero = Config {
            experts: 0,
            ..base.clone()
        };
        assert!(of(zero).starts_with("the number of experts is 0"));
    }

    #[test]
    fn slots_follow_the_factor_up_to_one_for_each_token() {
        let config = |factor| Config {
            capacity: Capacity::Factor(factor),
            ..Config::default()
        };
        // 2 x 32 pairs over 8 experts are 8 each.
        assert_eq!(config(1.0).slots(32), 8);
        assert_eq!(config(1.25).slots(32), 10);
        assert_eq!(config(1e-9).slots(32), 1);
        assert_eq!(config(100.0).slots(32), 32);
        let dropless = Config {
            capacity: Capacity::Dropless,
            ..Config::default()
        };
        assert_eq!(dropless.slots(32), 32);
        // 8 experts for the 2 of a token.
        assert_eq!(dropless.padding(32), 4.0);
    }
}
