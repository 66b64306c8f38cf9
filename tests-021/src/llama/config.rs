//! The shape of a model.

use burn::module::Initializer;
use burn::nn::{EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::backend::Backend;

use super::{Attention, Block, FeedForward, Llama};

/// The shapes that tests name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// dim 128, 4 layers, 4 heads, 2 kv heads, vocabulary 1024; seq 48, batch 16.
    Tiny,
    /// dim 256, 4 layers, 8 heads, 4 kv heads, vocabulary 2048; seq 256, batch 8.
    S,
    /// dim 512, 8 layers, 8 heads, 4 kv heads, vocabulary 8192; seq 512, batch 4.
    M,
    /// Llama 3.1 8B.
    B8,
}

impl Size {
    /// The shape with this name.
    pub fn config(self) -> LlamaConfig {
        let small = |dim, layers, heads, hidden_dim, vocab| LlamaConfig {
            dim,
            num_layers: layers,
            num_heads: heads,
            num_kv_heads: heads / 2,
            hidden_dim,
            vocab,
            theta: 500_000.0,
            init_std: 0.02,
        };
        match self {
            Self::Tiny => LlamaConfig {
                init_std: 0.088,
                theta: 1000.0,
                ..small(128, 4, 4, 384, 1024)
            },
            Self::S => small(256, 4, 8, 768, 2048),
            Self::M => small(512, 8, 8, 1536, 8192),
            Self::B8 => LlamaConfig {
                num_kv_heads: 8,
                ..small(4096, 32, 32, 14_336, 128_256)
            },
        }
    }

    /// Sequence length and global batch of a training step.
    pub fn default_seq_and_batch(self) -> (usize, usize) {
        match self {
            Self::Tiny => (48, 16),
            Self::S => (256, 8),
            Self::M => (512, 4),
            Self::B8 => (8192, 8),
        }
    }
}

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
    /// Pair `i` of a head of width `e` turns by `theta^(-2i/e)` per position.
    pub theta: f64,
    /// Standard deviation of the initial matrices that read the residual.
    pub init_std: f64,
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
        2 * self.vocab * self.dim + self.num_layers * block + self.dim
    }

    /// Builds the model with lazy parameters: nothing is allocated before its first use.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Llama<B> {
        let normal = |std| Initializer::Normal { mean: 0.0, std };
        let linear = |d_input, d_output, std| -> Linear<B> {
            LinearConfig::new(d_input, d_output)
                .with_bias(false)
                .with_initializer(normal(std))
                .init(device)
        };
        let norm = || -> RmsNorm<B> { RmsNormConfig::new(self.dim).init(device) };
        let kv_dim = self.num_kv_heads * self.head_dim();
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
                    },
                    ffn_norm: norm(),
                    feed_forward: FeedForward {
                        w1: linear(self.dim, self.hidden_dim, self.init_std),
                        w2: linear(self.hidden_dim, self.dim, deep),
                        w3: linear(self.dim, self.hidden_dim, deep),
                    },
                }
            })
            .collect();
        Llama {
            tok_embeddings: EmbeddingConfig::new(self.vocab, self.dim)
                .with_initializer(normal(1.0))
                .init(device),
            layers,
            norm: norm(),
            output: linear(self.dim, self.vocab, (self.dim as f64).powf(-0.5)),
            head_dim: self.head_dim(),
            theta: self.theta,
        }
    }
}
