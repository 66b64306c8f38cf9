use burn::module::Param;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::tensor::{Device, Tensor};
use thiserror::Error;

use super::{Attention, Block, Decoder, Experts, FeedForward, Mixture};

/// How many slots an expert has in a group of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Capacity {
    /// This many times what it would take if all experts were chosen alike; what does not fit is dropped.
    Factor(f64),
    /// One for each token of the group: the worst case, so that nothing is dropped.
    Dropless,
}

/// Sizes that do not fit each other.
#[derive(Debug, Error, PartialEq)]
pub enum ConfigError {
    /// A size is zero.
    #[error("{what} is 0: every size of a model must be at least 1")]
    Zero {
        /// Which one.
        what: &'static str,
    },
    /// A token chooses more experts than there are.
    #[error(
        "a token cannot choose {top_k} of {experts} experts: use --top-k {experts} or less, or more experts"
    )]
    TopKTooLarge {
        /// Choices of a token.
        top_k: usize,
        /// Experts.
        experts: usize,
    },
    /// Experts have no slot.
    #[error(
        "capacity factor {factor} leaves an expert no slot: use a number above 0 (1.25 is usual), or --dropless"
    )]
    NoCapacity {
        /// The factor.
        factor: f64,
    },
    /// The heads do not fill the width.
    #[error(
        "width {width} is not a multiple of {heads} heads: choose a number of heads that divides it"
    )]
    HeadsDoNotDivideWidth {
        /// The width.
        width: usize,
        /// The heads.
        heads: usize,
    },
    /// Rows cannot be cut into groups.
    #[error(
        "a sequence of {seq} tokens cannot be cut into {groups} equal groups: choose --groups that divide it"
    )]
    GroupsDoNotDivideSequence {
        /// Tokens of a sequence.
        seq: usize,
        /// Groups of it.
        groups: usize,
    },
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
        }
    }
}

impl Config {
    /// Checks that the sizes fit each other, for sequences of `seq` tokens.
    ///
    /// # Errors
    /// [`ConfigError`] with the sizes at fault.
    pub fn validate(&self, seq: usize) -> Result<(), ConfigError> {
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
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero { what });
        }
        if self.top_k > self.experts {
            return Err(ConfigError::TopKTooLarge {
                top_k: self.top_k,
                experts: self.experts,
            });
        }
        if let Capacity::Factor(factor) = self.capacity
            && !(factor > 0.0 && factor.is_finite())
        {
            return Err(ConfigError::NoCapacity { factor });
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(ConfigError::HeadsDoNotDivideWidth {
                width: self.width,
                heads: self.heads,
            });
        }
        if !seq.is_multiple_of(self.groups) {
            return Err(ConfigError::GroupsDoNotDivideSequence {
                seq,
                groups: self.groups,
            });
        }
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
        assert_eq!(base.validate(32), Ok(()));
        let (top_k, experts) = (9, 8);
        let too_many = Config {
            top_k,
            ..base.clone()
        };
        let error = ConfigError::TopKTooLarge { top_k, experts };
        assert_eq!(too_many.validate(32), Err(error));
        for factor in [0.0, -1.0, f64::INFINITY] {
            let capacity = Capacity::Factor(factor);
            let none = Config {
                capacity,
                ..base.clone()
            };
            assert_eq!(none.validate(32), Err(ConfigError::NoCapacity { factor }));
        }
        let groups = Config {
            groups: 3,
            ..base.clone()
        };
        let error = ConfigError::GroupsDoNotDivideSequence { seq: 32, groups: 3 };
        assert_eq!(groups.validate(32), Err(error));
        let none = Config { experts: 0, ..base };
        let what = "the number of experts";
        assert_eq!(none.validate(32), Err(ConfigError::Zero { what }));
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
