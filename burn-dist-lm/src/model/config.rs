use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::tensor::Device;
use burn_dist::nn::mixture::{Capacity, MixtureConfig};
use burn_dist::trainer::lora::Adapters;
use burn_dist::trainer::report::count_text;

use super::{
    Attention, Biases, Block, ConfigError, Experts, FeedForward, Llama, Options, RopeConfig,
    RopeScaling,
};

/// The most layers of a model: they are objects on the host before any tensor is one on a device. Published models have
/// up to 126.
pub(crate) const LAYERS_MAX: usize = 1 << 12;
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
    /// The options in which families differ.
    pub options: Options,
    /// Low-rank adapters, which alone are trained if there are some.
    pub adapters: Option<Adapters>,
}

impl LlamaConfig {
    /// Elements of one head.
    pub fn head_dim(&self) -> usize {
        self.options.head_dim.unwrap_or(self.dim / self.num_heads)
    }

    /// Elements of all query heads of a token.
    pub fn q_dim(&self) -> usize {
        self.num_heads * self.head_dim()
    }

    /// Elements of all key heads of a token, and as many of values.
    pub fn kv_dim(&self) -> usize {
        self.num_kv_heads * self.head_dim()
    }

    /// The experts of a layer. Every expert has a slot for each token, so that none is left out.
    pub fn mixture(&self) -> Option<MixtureConfig> {
        let experts = self.options.experts.as_ref()?;
        Some(MixtureConfig {
            width: self.dim,
            hidden: experts.hidden_dim,
            experts: experts.num,
            top_k: experts.top_k,
            capacity: Capacity::Dropless,
            groups: 1,
            shared: false,
        })
    }

    /// Number of parameters.
    pub fn num_params(&self) -> usize {
        let parts = self.parts().into_iter();
        let counts = parts.map(|(times, _, shape)| times * shape.iter().product::<usize>());
        counts.sum()
    }

    /// The parameters by kind: how many there are of it, what they are, and their shape.
    fn parts(&self) -> Vec<(usize, &'static str, Vec<usize>)> {
        let Self {
            dim,
            hidden_dim,
            vocab,
            num_layers,
            ..
        } = *self;
        let (q_dim, kv_dim) = (self.q_dim(), self.kv_dim());
        let mut parts = vec![
            (1, "tok_embeddings", vec![vocab, dim]),
            (2 * num_layers + 1, "norms", vec![dim]),
            (2 * num_layers, "attention wq, wo", vec![dim, q_dim]),
            (2 * num_layers, "attention wk, wv", vec![dim, kv_dim]),
        ];
        match &self.options.experts {
            None => parts.extend([
                (2 * num_layers, "ffn w1, w3", vec![dim, hidden_dim]),
                (num_layers, "ffn w2", vec![hidden_dim, dim]),
            ]),
            Some(experts) => {
                let Experts {
                    num, hidden_dim, ..
                } = *experts;
                parts.extend([
                    (num_layers, "router", vec![dim, num]),
                    (
                        2 * num_layers,
                        "experts gate, up",
                        vec![num, dim, hidden_dim],
                    ),
                    (num_layers, "experts down", vec![num, hidden_dim, dim]),
                ]);
            }
        }
        if self.options.head_norms {
            let of_heads = vec![self.head_dim()];
            parts.push((2 * num_layers, "norms of heads", of_heads));
        }
        if self.options.biases != Biases::None {
            let of_inputs = vec![q_dim + 2 * kv_dim];
            parts.push((num_layers, "biases of q, k, v", of_inputs));
        }
        if self.options.biases == Biases::All {
            parts.push((num_layers, "biases of wo", vec![dim]));
        }
        if !self.tied {
            parts.push((1, "output", vec![dim, vocab]));
        }
        parts
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
            options,
            adapters,
        } = self;
        let scaling = scaling.as_ref();
        let scaling = scaling.map_or("none".to_string(), RopeScaling::to_string);
        let own = vec![
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
        let adapters = adapters.iter().flat_map(Adapters::facts);
        own.into_iter()
            .chain(options.facts())
            .chain(adapters)
            .collect()
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
        let Options {
            head_dim,
            window,
            experts,
            ..
        } = &self.options;
        let own_head = head_dim.map(|width| ("the width of a head", width, DIM_MAX));
        let keys = window.as_ref();
        let keys = keys.map(|window| ("the window of keys", window.keys, usize::MAX));
        let of_experts = experts.as_ref().map(|experts| {
            let all = experts.num.saturating_mul(experts.hidden_dim);
            [
                ("the number of experts", experts.num, HIDDEN_MAX),
                (
                    "the number of experts of a token",
                    experts.top_k,
                    experts.num,
                ),
                ("the width of all experts", all, HIDDEN_MAX),
            ]
        });
        let of_experts = of_experts.into_iter().flatten();
        let sizes = sizes
            .into_iter()
            .chain(own_head)
            .chain(keys)
            .chain(of_experts);
        for (what, found, limit) in sizes {
            match found {
                0 => return Err(ConfigError::Zero { what }),
                _ if found > limit => return Err(ConfigError::TooLarge { what, found, limit }),
                _ => {}
            }
        }
        let numbers = [
            ("the epsilon of the norms", self.norm_eps, 0.0),
            (
                "the base of rotary positions",
                self.rope.theta,
                self.rope.theta_floor(),
            ),
        ];
        let scaling = self.rope.scaling.as_ref();
        let of_scaling = scaling.into_iter().flat_map(RopeScaling::numbers);
        for (what, found, floor) in numbers.into_iter().chain(of_scaling) {
            if !(found.is_finite() && found > floor) {
                return Err(ConfigError::TooSmall { what, found, floor });
            }
        }
        let own_width = self.options.head_dim.is_some();
        if !own_width && !self.dim.is_multiple_of(self.num_heads) {
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
        let (what, limit) = ("the width of all heads", HIDDEN_MAX);
        let found = self.num_heads.saturating_mul(self.head_dim());
        if found > limit {
            return Err(ConfigError::TooLarge { what, found, limit });
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
        let biased = |d_input, d_output, std, bias| -> Linear {
            LinearConfig::new(d_input, d_output)
                .with_bias(bias)
                .with_initializer(normal(std))
                .init(device)
        };
        let linear = |d_input, d_output, std| biased(d_input, d_output, std, false);
        let norm_of = |width| -> RmsNorm {
            RmsNormConfig::new(width)
                .with_epsilon(self.norm_eps)
                .init(device)
        };
        let norm = || norm_of(self.dim);
        let (q_dim, kv_dim, std) = (self.q_dim(), self.kv_dim(), self.init_std);
        let options = &self.options;
        let (bias, output_bias) = (
            options.biases != Biases::None,
            options.biases == Biases::All,
        );
        let head_norm = || options.head_norms.then(|| norm_of(self.head_dim()));
        let dropout = self.adapters.as_ref().map_or(0.0, |of| of.dropout);
        let layers = (0..self.num_layers)
            .map(|layer| {
                let deep = self.init_std / (2.0 * (layer + 1) as f64).sqrt();
                Block {
                    attention_norm: norm(),
                    attention: Attention {
                        wq: biased(self.dim, q_dim, std, bias),
                        wk: biased(self.dim, kv_dim, std, bias),
                        wv: biased(self.dim, kv_dim, std, bias),
                        wo: biased(q_dim, self.dim, deep, output_bias),
                        q_norm: head_norm(),
                        k_norm: head_norm(),
                        num_heads: self.num_heads,
                        num_kv_heads: self.num_kv_heads,
                        head_dim: self.head_dim(),
                        turns: !options.unturned.contains(&layer),
                        window: options.window_of(layer),
                        dropout,
                    },
                    ffn_norm: norm(),
                    feed_forward: options.experts.is_none().then(|| FeedForward {
                        w1: linear(self.dim, self.hidden_dim, self.init_std),
                        w2: linear(self.hidden_dim, self.dim, deep),
                        w3: linear(self.dim, self.hidden_dim, deep),
                        dropout,
                    }),
                    mixture: self
                        .mixture()
                        .map(|mixture| mixture.init(2 * self.num_layers, device)),
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

    /// The parameters of a model of this name with their shapes and counts, as a table.
    pub fn table(&self, name: &str) -> String {
        let mut text = format!(
            "{name}: {} parameters",
            count_text(self.num_params() as u64)
        );
        for (times, what, shape) in self.parts() {
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
            ..super::Size::S.config()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Size, Window};

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

    fn dynamic(factor: f64, max_position: usize) -> RopeScaling {
        RopeScaling::Dynamic {
            factor,
            max_position,
        }
    }

    fn llama3(factor: f64, low: f64, high: f64, length: usize) -> RopeScaling {
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position: length,
        }
    }

    fn yarn(factor: f64, attention_factor: f64, beta_fast: f64, length: usize) -> RopeScaling {
        RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow: 1.0,
            truncate: true,
            original_max_position: length,
        }
    }

    /// Each number of a configuration with the values that none may have, set one at a time in a model with all of
    /// them.
    #[test]
    fn numbers_that_no_model_has_are_refused() {
        let window = Window {
            keys: 8,
            layers: [1].into(),
        };
        let options = Options {
            head_dim: Some(4),
            window: Some(window),
            ..Options::default()
        };
        let base = LlamaConfig {
            options,
            ..LlamaConfig::test()
        };
        assert_eq!(base.validate(), Ok(()));
        let sizes: [fn(&mut LlamaConfig) -> &mut usize; 8] = [
            |config| &mut config.dim,
            |config| &mut config.num_layers,
            |config| &mut config.num_heads,
            |config| &mut config.num_kv_heads,
            |config| &mut config.hidden_dim,
            |config| &mut config.vocab,
            |config| config.options.head_dim.as_mut().unwrap(),
            |config| &mut config.options.window.as_mut().unwrap().keys,
        ];
        let numbers: [fn(&mut LlamaConfig) -> &mut f64; 2] = [
            |config| &mut config.norm_eps,
            |config| &mut config.rope.theta,
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
            // A wide window is none that has to be built.
            let values = [0, 1 << 40, usize::MAX];
            let values = if number == 7 {
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
        let scalings: [fn(f64) -> RopeScaling; 11] = [
            |factor| RopeScaling::Linear { factor },
            |factor| dynamic(factor, 8),
            |length| dynamic(2.0, length as usize),
            |factor| llama3(factor, 1.0, 4.0, 8),
            |low| llama3(8.0, low, 8.0, 8),
            |high| llama3(8.0, 1.0, high, 8),
            |length| llama3(8.0, 1.0, 4.0, length as usize),
            |factor| yarn(factor, 1.1, 32.0, 8),
            |attention| yarn(4.0, attention, 32.0, 8),
            |fast| yarn(4.0, 1.1, fast, 8),
            |length| yarn(4.0, 1.1, 32.0, length as usize),
        ];
        let of = |scaling| {
            let mut config = base.clone();
            config.rope.scaling = Some(scaling);
            config
        };
        for scaling in scalings {
            assert_eq!(of(scaling(5.0)).validate(), Ok(()));
            for value in [0.0, -1.0] {
                assert!(refused(&of(scaling(value))), "{:?}", scaling(value));
            }
        }
        // Its pairs are counted by the logarithm of the base.
        let mut config = of(yarn(4.0, 1.1, 32.0, 8));
        config.rope.theta = 1.0;
        assert!(refused(&config));
        // With every field at its limit, bytes of all parameters and of what training keeps of them are counted.
        let largest = LlamaConfig {
            dim: DIM_MAX,
            num_layers: LAYERS_MAX,
            num_heads: HIDDEN_MAX / DIM_MAX,
            num_kv_heads: HIDDEN_MAX / DIM_MAX,
            hidden_dim: HIDDEN_MAX,
            vocab: VOCAB_MAX,
            options: Options {
                head_dim: Some(DIM_MAX),
                ..Options::default()
            },
            ..base
        };
        assert_eq!(largest.validate(), Ok(()));
        assert!(largest.num_params() as u64 <= u64::MAX / 16);
    }
}
