//! The named shapes of the command line.

use super::{LlamaConfig, Options, RopeConfig};

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
            options: Options::default(),
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
