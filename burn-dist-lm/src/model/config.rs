use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::tensor::Device;
use burn_dist::trainer::report::count_text;
use thiserror::Error;

use super::{Adapters, Attention, Block, FeedForward, Llama, RopeConfig, RopeScaling};

/// The named shapes of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Size {
    /// dim 128, 4 layers, 4 heads, 2 kv heads, vocabulary 1024; seq 48, batch 16: for the generated task.
    #[value(name = "tiny")]
    Tiny,
    /// dim 256, 4 layers, 8 heads, 4 kv heads, vocabulary 2048; seq 256, batch 8.
    #[value(name = "S")]
    S,
    /// dim 512, 8 layers, 8 heads, 4 kv heads, vocabulary 8192; seq 512, batch 4.
    #[value(name = "M")]
    M,
    /// Llama 3.2 1B.
    #[value(name = "1b")]
    B1,
    /// Llama 3.1 8B.
    #[value(name = "8b")]
    B8,
    /// Llama 3.1 70B.
    #[value(name = "70b")]
    B70,
    /// Llama 3.1 405B.
    #[value(name = "405b")]
    B405,
}

impl Size {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Size::Tiny => "tiny",
            Size::S => "S",
            Size::M => "M",
            Size::B1 => "1b",
            Size::B8 => "8b",
            Size::B70 => "70b",
            Size::B405 => "405b",
        }
    }

    /// The shape with this name.
    pub fn config(self) -> LlamaConfig {
        let small = |dim, layers, heads, kv_heads, vocab| LlamaConfig {
            dim,
            num_layers: layers,
            num_heads: heads,
            num_kv_heads: kv_heads,
            hidden_dim: swiglu_hidden(dim, 256),
            vocab,
            rope: RopeConfig {
                theta: 500_000.0,
                scaling: None,
            },
            norm_eps: 1e-5,
            init_std: 0.02,
            tied: false,
            adapters: None,
        };
        let published = |dim, layers, heads, hidden_dim| LlamaConfig {
            hidden_dim,
            ..small(dim, layers, heads, 8, 128_256)
        };
        match self {
            Size::Tiny => LlamaConfig {
                hidden_dim: 384,
                // dim^-0.5. The 0.02 of wide models is small for a width of 128, and slows a short run down.
                init_std: 0.088,
                // Few of a head's 16 pairs would turn noticeably within 48 tokens at the 500,000 of long contexts.
                rope: RopeConfig {
                    theta: 1000.0,
                    scaling: None,
                },
                ..small(128, 4, 4, 2, 1024)
            },
            Size::S => small(256, 4, 8, 4, 2048),
            Size::M => small(512, 8, 8, 4, 8192),
            Size::B1 => published(2048, 16, 32, 8192),
            Size::B8 => published(4096, 32, 32, 14_336),
            Size::B70 => published(8192, 80, 64, 28_672),
            Size::B405 => published(16_384, 126, 128, 53_248),
        }
    }

    /// Sequence length and global batch of a training step when the command line names none.
    pub fn default_seq_and_batch(self) -> (usize, usize) {
        match self {
            Size::Tiny => (48, 16),
            Size::S => (256, 8),
            Size::M => (512, 4),
            Size::B1 | Size::B8 | Size::B70 | Size::B405 => (8192, 8),
        }
    }
}

/// Returns two thirds of four times `dim`, rounded up to a multiple of `multiple_of`.
fn swiglu_hidden(dim: usize, multiple_of: usize) -> usize {
    (2 * 4 * dim / 3).next_multiple_of(multiple_of)
}

/// A shape that is no Llama.
#[derive(Error, PartialEq)]
pub enum ConfigError {
    /// The heads do not fill the width.
    #[error("dim {dim} is not a multiple of {heads} heads: choose a head count that divides it")]
    HeadsDoNotDivideDim {
        /// The model width.
        dim: usize,
        /// The number of query heads.
        heads: usize,
    },
    /// Query heads cannot be grouped.
    #[error(
        "{heads} heads cannot share {kv_heads} key/value heads: choose kv heads that divide the heads"
    )]
    KvHeadsDoNotDivideHeads {
        /// The number of query heads.
        heads: usize,
        /// The number of key/value heads.
        kv_heads: usize,
    },
    /// Rotary positions turn pairs.
    #[error("the head width {head_dim} is odd: rotary positions need pairs of elements")]
    OddHead {
        /// The width of one head.
        head_dim: usize,
    },
    /// A size is zero.
    #[error("{what} is 0: every size of a model must be at least 1")]
    Zero {
        /// Which one.
        what: &'static str,
    },
    /// A size is beyond any model's.
    #[error("{what} is {found}, and models of up to {limit} can be built here")]
    TooLarge {
        /// Which one.
        what: &'static str,
        /// The size asked for.
        found: usize,
        /// The most there can be.
        limit: usize,
    },
    /// A number with which nothing can be computed.
    #[error("{what} is {found}, and has to be a number above {floor}")]
    TooSmall {
        /// Which one.
        what: &'static str,
        /// Its value.
        found: f64,
        /// The number that it has to be above.
        floor: f64,
    },
}

burn_dist_mesh::debug_by_message!(ConfigError);

/// The most layers of a model: they are objects on the host before any tensor is one on a device. Published models have
/// up to 126.
const LAYERS_MAX: usize = 1 << 12;
/// The largest width of the residual, as the others one at which bytes of a model are counted in 64 bits. Published
/// ones have up to 2^14, 2^16 and 2^18.
const DIM_MAX: usize = 1 << 20;
const HIDDEN_MAX: usize = 1 << 22;
const VOCAB_MAX: usize = 1 << 24;

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Model width.
    pub dim: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; each serves `num_heads / num_kv_heads` query heads.
    pub num_kv_heads: usize,
    /// Width inside the feed-forward layer.
    pub hidden_dim: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Rotary positions.
    pub rope: RopeConfig,
    /// Added to the mean square before its root.
    pub norm_eps: f64,
    /// Standard deviation of the initial matrices that read the residual.
    pub init_std: f64,
    /// True if the embedding is also the output matrix. The named sizes have one of each.
    pub tied: bool,
    /// Low-rank adapters, which alone are trained if there are some.
    pub adapters: Option<Adapters>,
}

impl LlamaConfig {
    /// Elements of one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.num_heads
    }

    /// Number of parameters.
    pub fn num_params(&self) -> usize {
        let kv_dim = self.num_kv_heads * self.head_dim();
        let attention = 2 * self.dim * self.dim + 2 * self.dim * kv_dim;
        let block = attention + 3 * self.dim * self.hidden_dim + 2 * self.dim;
        let vocab = if self.tied { 1 } else { 2 } * self.vocab;
        vocab * self.dim + self.num_layers * block + self.dim
    }

    /// All that tells it from other models, as names and values: what goes on with its weights has to have the same.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let Self {
            dim,
            num_layers,
            num_heads,
            num_kv_heads,
            hidden_dim,
            vocab,
            rope: RopeConfig { theta, scaling },
            norm_eps,
            // Of values that were made once.
            init_std: _,
            tied,
            adapters,
        } = self;
        let scaling = scaling.as_ref().map_or("none".to_string(), |scaling| {
            let RopeScaling {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } = scaling;
            format!(
                "{factor} beyond {original_max_position} tokens, from {low_freq_factor} to {high_freq_factor} turns"
            )
        });
        let mut facts = vec![
            ("width", dim.to_string()),
            ("layers", num_layers.to_string()),
            ("heads", num_heads.to_string()),
            ("key/value heads", num_kv_heads.to_string()),
            ("feed-forward width", hidden_dim.to_string()),
            ("vocabulary", vocab.to_string()),
            ("base of rotary positions", theta.to_string()),
            ("scaling of rotary positions", scaling),
            ("epsilon of norms", norm_eps.to_string()),
            (
                "output",
                if *tied {
                    "the embedding"
                } else {
                    "a matrix of its own"
                }
                .to_string(),
            ),
        ];
        facts.extend(adapters.iter().flat_map(Adapters::facts));
        facts
    }

    /// Checks that the sizes are those of a model, and fit each other.
    ///
    /// # Errors
    /// [`ConfigError`] with the sizes at fault.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("dim", self.dim, DIM_MAX),
            ("the number of layers", self.num_layers, LAYERS_MAX),
            ("the number of heads", self.num_heads, DIM_MAX),
            ("the number of kv heads", self.num_kv_heads, DIM_MAX),
            ("the feed-forward width", self.hidden_dim, HIDDEN_MAX),
            ("the vocabulary", self.vocab, VOCAB_MAX),
        ];
        for (what, found, limit) in sizes {
            match found {
                0 => return Err(ConfigError::Zero { what }),
                _ if found > limit => return Err(ConfigError::TooLarge { what, found, limit }),
                _ => {}
            }
        }
        let numbers = [
            ("the epsilon of the norms", self.norm_eps, 0.0),
            ("the base of rotary positions", self.rope.theta, 0.0),
        ];
        let of_scaling = self.rope.scaling.iter().flat_map(|scaling| {
            let RopeScaling {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } = scaling;
            [
                ("the factor of rotary scaling", *factor, 0.0),
                (
                    "the low_freq_factor of rotary scaling",
                    *low_freq_factor,
                    0.0,
                ),
                (
                    "the high_freq_factor of rotary scaling",
                    *high_freq_factor,
                    *low_freq_factor,
                ),
                (
                    "the original length of rotary scaling",
                    *original_max_position as f64,
                    0.0,
                ),
            ]
        });
        for (what, found, floor) in numbers.into_iter().chain(of_scaling) {
            if !(found.is_finite() && found > floor) {
                return Err(ConfigError::TooSmall { what, found, floor });
            }
        }
        if !self.dim.is_multiple_of(self.num_heads) {
            return Err(ConfigError::HeadsDoNotDivideDim {
                dim: self.dim,
                heads: self.num_heads,
            });
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return Err(ConfigError::KvHeadsDoNotDivideHeads {
                heads: self.num_heads,
                kv_heads: self.num_kv_heads,
            });
        }
        if !self.head_dim().is_multiple_of(2) {
            return Err(ConfigError::OddHead {
                head_dim: self.head_dim(),
            });
        }
        Ok(())
    }

    /// Builds the model with lazy parameters: nothing is allocated before its first use.
    ///
    /// Normal embedding; `init_std` for the matrices that read the residual, less with depth for those that write to
    /// it; `dim^-0.5` for the output. torchtitan's initialisation, without its truncation at two deviations and more.
    pub fn init(&self, device: &Device) -> Llama {
        let normal = |std| Initializer::Normal { mean: 0.0, std };
        let linear = |d_input, d_output, std| -> Linear {
            LinearConfig::new(d_input, d_output)
                .with_bias(false)
                .with_initializer(normal(std))
                .init(device)
        };
        let norm = || -> RmsNorm {
            RmsNormConfig::new(self.dim)
                .with_epsilon(self.norm_eps)
                .init(device)
        };
        let kv_dim = self.num_kv_heads * self.head_dim();
        let dropout = self.adapters.as_ref().map_or(0.0, |of| of.dropout);
        let layers = (0..self.num_layers)
            .map(|layer| {
                let deep = self.init_std / (2.0 * (layer + 1) as f64).sqrt();
                Block {
                    attention_norm: norm(),
                    attention: Attention {
                        wq: linear(self.dim, self.dim, self.init_std),
                        wk: linear(self.dim, kv_dim, self.init_std),
                        wv: linear(self.dim, kv_dim, self.init_std),
                        wo: linear(self.dim, self.dim, deep),
                        num_heads: self.num_heads,
                        num_kv_heads: self.num_kv_heads,
                        head_dim: self.head_dim(),
                        dropout,
                    },
                    ffn_norm: norm(),
                    feed_forward: FeedForward {
                        w1: linear(self.dim, self.hidden_dim, self.init_std),
                        w2: linear(self.hidden_dim, self.dim, deep),
                        w3: linear(self.dim, self.hidden_dim, deep),
                        dropout,
                    },
                }
            })
            .collect();
        let of_output = (self.dim as f64).powf(-0.5);
        let tok_embeddings: Embedding = EmbeddingConfig::new(self.vocab, self.dim)
            // An output matrix that keeps the scale of what it reads.
            .with_initializer(normal(if self.tied { of_output } else { 1.0 }))
            .init(device);
        let model = Llama {
            tok_embeddings,
            layers,
            norm: norm(),
            output: (!self.tied).then(|| linear(self.dim, self.vocab, of_output)),
            head_dim: self.head_dim(),
            dropout,
            rope: self.rope.clone(),
        };
        match &self.adapters {
            Some(adapters) => adapters.attach(model),
            None => model,
        }
    }

    /// The matrices of a model of this name with their shapes and counts, as a table.
    pub fn table(&self, name: &str) -> String {
        let Self {
            dim,
            hidden_dim,
            vocab,
            num_layers,
            ..
        } = *self;
        let kv_dim = self.num_kv_heads * self.head_dim();
        let mut rows = vec![
            (1, "tok_embeddings", vec![vocab, dim]),
            (2 * num_layers + 1, "norms", vec![dim]),
            (2 * num_layers, "attention wq, wo", vec![dim, dim]),
            (2 * num_layers, "attention wk, wv", vec![dim, kv_dim]),
            (2 * num_layers, "ffn w1, w3", vec![dim, hidden_dim]),
            (num_layers, "ffn w2", vec![hidden_dim, dim]),
        ];
        if !self.tied {
            rows.push((1, "output", vec![dim, vocab]));
        }
        let mut text = format!(
            "{name}: {} parameters",
            count_text(self.num_params() as u64)
        );
        for (times, what, shape) in rows {
            let count = times * shape.iter().product::<usize>();
            let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
            let times = match times {
                1 => String::new(),
                times => format!("{times} x"),
            };
            let (shape, count) = (shape.join(" x "), count_text(count as u64));
            text += &format!("\n  {times:>6} {what:<18} {shape:>16} {count:>18}");
        }
        text
    }

    /// A model small enough for tests.
    #[cfg(test)]
    pub fn test() -> Self {
        Self {
            dim: 16,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            hidden_dim: 32,
            vocab: 64,
            init_std: 0.02,
            ..Size::S.config()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sizes_have_the_published_counts() {
        // The embedding counts twice: 1B ties it, we do not.
        for (size, billions) in [
            (Size::B8, 8.03),
            (Size::B70, 70.55),
            (Size::B405, 405.85),
            (Size::B1, 1.50),
        ] {
            let params = size.config().num_params() as f64 / 1e9;
            assert!(
                (params - billions).abs() < 0.01,
                "{}: {params}",
                size.name()
            );
        }
        assert_eq!(Size::S.config().hidden_dim, 768);
        assert_eq!(Size::M.config().hidden_dim, 1536);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let base = Size::S.config();
        assert_eq!(base.validate(), Ok(()));
        assert_eq!(
            LlamaConfig {
                num_heads: 7,
                ..base.clone()
            }
            .validate(),
            Err(ConfigError::HeadsDoNotDivideDim { dim: 256, heads: 7 })
        );
        assert_eq!(
            LlamaConfig {
                num_kv_heads: 3,
                ..base.clone()
            }
            .validate(),
            Err(ConfigError::KvHeadsDoNotDivideHeads {
                heads: 8,
                kv_heads: 3
            })
        );
        assert_eq!(
            LlamaConfig {
                dim: 24,
                ..base.clone()
            }
            .validate(),
            Err(ConfigError::OddHead { head_dim: 3 })
        );
        assert_eq!(
            LlamaConfig {
                vocab: 0,
                ..base.clone()
            }
            .validate(),
            Err(ConfigError::Zero {
                what: "the vocabulary"
            })
        );
    }

    /// Each number of a configuration with the values that none may have, set one at a time in a model with all of
    /// them.
    #[test]
    fn numbers_that_no_model_has_are_refused() {
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let rope = RopeConfig {
            theta: 500_000.0,
            scaling: Some(scaling),
        };
        let base = LlamaConfig {
            rope,
            ..LlamaConfig::test()
        };
        assert_eq!(base.validate(), Ok(()));
        fn scaling_of(config: &mut LlamaConfig) -> &mut RopeScaling {
            config.rope.scaling.as_mut().unwrap()
        }
        let sizes: [fn(&mut LlamaConfig) -> &mut usize; 7] = [
            |config| &mut config.dim,
            |config| &mut config.num_layers,
            |config| &mut config.num_heads,
            |config| &mut config.num_kv_heads,
            |config| &mut config.hidden_dim,
            |config| &mut config.vocab,
            |config| &mut scaling_of(config).original_max_position,
        ];
        let numbers: [fn(&mut LlamaConfig) -> &mut f64; 5] = [
            |config| &mut config.norm_eps,
            |config| &mut config.rope.theta,
            |config| &mut scaling_of(config).factor,
            |config| &mut scaling_of(config).low_freq_factor,
            |config| &mut scaling_of(config).high_freq_factor,
        ];
        let refused = |config: &LlamaConfig| {
            matches!(
                config.validate(),
                Err(ConfigError::Zero { .. }
                    | ConfigError::TooLarge { .. }
                    | ConfigError::TooSmall { .. })
            )
        };
        for (number, of) in sizes.iter().enumerate() {
            // A long context is none that has to be built.
            let values = [0, 1 << 40, usize::MAX];
            let values = if number == 6 {
                &values[..1]
            } else {
                &values[..]
            };
            for value in values {
                let mut config = base.clone();
                *of(&mut config) = *value;
                assert!(refused(&config), "{config:?}");
            }
        }
        for of in numbers {
            for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
                let mut config = base.clone();
                *of(&mut config) = value;
                assert!(refused(&config), "{config:?}");
            }
        }
        // With every field at its limit, bytes of all parameters and of what training keeps of them are counted.
        let largest = LlamaConfig {
            dim: DIM_MAX,
            num_layers: LAYERS_MAX,
            num_heads: 1,
            num_kv_heads: 1,
            hidden_dim: HIDDEN_MAX,
            vocab: VOCAB_MAX,
            ..base
        };
        assert_eq!(largest.validate(), Ok(()));
        assert!(largest.num_params() as u64 <= u64::MAX / 16);
    }
}
