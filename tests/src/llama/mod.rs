//! A Llama-3-style decoder and a training step of it: the model of the example `llama`, without documents that share
//! rows.
//!
//! Shape letters: `b` batch, `s` sequence, `t` tokens (`b * s`), `d` model width, `h` query heads, `k` key/value heads,
//! `n` query heads per key/value head, `e` head width, `f` feed-forward width, `v` vocabulary.

mod block;
mod config;
mod rope;
mod train;

pub use block::{Attention, Block, FeedForward};
pub use config::{LlamaConfig, Size};
pub use rope::Rope;
pub use train::{RandomTokens, Tokens, optimizer, step, step_of};

use burn::module::Module;
use burn::nn::{Embedding, Linear, RmsNorm};
use burn::tensor::{Int, Tensor};
use burn_dist::Parallelize;

/// The whole decoder, from token ids to logits.
#[derive(Module, Debug, Parallelize)]
pub struct Llama {
    // The residual stream is split over the sequence from here on: sequence parallel.
    #[parallel(vocab, output = "[-, {tp}, -]", first)]
    tok_embeddings: Embedding,
    #[parallel(stages)]
    layers: Vec<Block>,
    #[parallel(sequence, last)]
    norm: RmsNorm,
    // The logits stay split over the vocabulary: loss parallel.
    #[parallel(vocab, last)]
    output: Linear,
    head_dim: usize,
    theta: f64,
}

impl Llama {
    /// Returns the logits for token ids.
    ///
    /// # Shapes
    /// `tokens`: `[b, s]`; output: `[b, s, v]`.
    pub fn forward(&self, tokens_bs: Tensor<2, Int>) -> Tensor<3> {
        let [_, seq] = tokens_bs.dims();
        let rope = Rope::new(seq, self.head_dim, self.theta, &tokens_bs.device());
        let mut x_bsd = self.tok_embeddings.forward(tokens_bs);
        for layer in &self.layers {
            x_bsd = layer.forward(x_bsd, &rope);
        }
        let hidden_bsd = self.norm.forward(x_bsd);
        let [b, s, d] = hidden_bsd.dims();
        let logits_tv = self.output.forward(hidden_bsd.reshape([b * s, d]));
        let [_, v] = logits_tv.dims();
        logits_tv.reshape([b, s, v])
    }
}
