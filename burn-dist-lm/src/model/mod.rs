//! A decoder in plain Burn style: nothing in this folder knows of ranks or meshes.
//!
//! RMSNorm, rotary positions, grouped-query attention and SwiGLU, as Llama has them; [`Options`] are what other families
//! do otherwise.
//!
//! Shape letters: `b` batch, `s` sequence, `t` tokens (`b * s`), `d` model width, `h` query heads, `k` key/value heads,
//! `n` query heads per key/value head, `e` head width, `f` feed-forward width, `v` vocabulary.

mod attention;
mod block;
mod config;
mod error;
mod feed_forward;
mod options;
mod packed;
mod rope;
mod size;

pub use attention::Attention;
pub use block::Block;
pub use burn_dist::trainer::tokens::Packed;
pub(crate) use config::LAYERS_MAX;
pub use config::LlamaConfig;
pub use error::ConfigError;
pub use feed_forward::FeedForward;
pub use options::{Biases, Experts, Family, Options, Window};
pub use packed::Positions;
pub use rope::{Rope, RopeConfig, RopeScaling};
pub use size::Size;

use burn::module::Module;
use burn::nn::{Embedding, Linear, RmsNorm};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Parallelize;
use burn_dist::nn::adapted_linear;

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
    /// None if the embedding is the output too.
    #[parallel(vocab, last)]
    output: Option<Linear>,
    head_dim: usize,
    /// The share of their input that adapters do not see in training.
    dropout: f64,
    #[module(skip)]
    pub(crate) rope: RopeConfig,
}

impl Llama {
    /// Builds what every block shares for sequences of `seq` tokens, each of which is one document or `packed`.
    pub fn positions(&self, seq: usize, packed: Option<Packed>, device: &Device) -> Positions {
        let rope = Rope::new(seq, self.head_dim, &self.rope, device);
        match packed {
            None => Positions { rope, mask: None },
            Some(packed) => Positions {
                rope: rope.at(packed.positions.clone()),
                mask: Some(packed.mask()),
            },
        }
    }

    /// Returns the normalised output of the last block.
    ///
    /// # Shapes
    /// `tokens`: `[b, s]`; output: `[b, s, d]`.
    pub fn hidden(&self, tokens_bs: Tensor<2, Int>) -> Tensor<3> {
        self.hidden_packed(tokens_bs, None)
    }

    /// Does the same as [`hidden`](Self::hidden), for documents that share rows.
    pub fn hidden_packed(&self, tokens_bs: Tensor<2, Int>, packed: Option<Packed>) -> Tensor<3> {
        let [_, seq] = tokens_bs.dims();
        let positions = self.positions(seq, packed, &tokens_bs.device());
        let mut x_bsd = self.tok_embeddings.forward(tokens_bs);
        for layer in &self.layers {
            x_bsd = layer.forward(x_bsd, &positions);
        }
        self.norm.forward(x_bsd)
    }

    /// Returns the logits for hidden states.
    ///
    /// # Shapes
    /// `hidden`: `[b, s, d]`; output: `[b, s, v]`.
    pub fn logits(&self, hidden_bsd: Tensor<3>) -> Tensor<3> {
        let [b, s, d] = hidden_bsd.dims();
        let hidden_td = hidden_bsd.reshape([b * s, d]);
        let logits_tv = match &self.output {
            Some(output) => adapted_linear(output, hidden_td, self.dropout),
            None => hidden_td.matmul(self.tok_embeddings.weight.val().transpose()),
        };
        let [_, v] = logits_tv.dims();
        logits_tv.reshape([b, s, v])
    }

    /// Returns the logits for token ids.
    ///
    /// # Shapes
    /// `tokens`: `[b, s]`; output: `[b, s, v]`.
    pub fn forward(&self, tokens_bs: Tensor<2, Int>) -> Tensor<3> {
        self.logits(self.hidden(tokens_bs))
    }

    /// Returns the logits for token ids, of documents that share rows: those of each document alone.
    ///
    /// # Shapes
    /// `tokens`: `[b, s]`; output: `[b, s, v]`.
    pub fn forward_packed(&self, tokens_bs: Tensor<2, Int>, packed: Option<Packed>) -> Tensor<3> {
        self.logits(self.hidden_packed(tokens_bs, packed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    fn tokens(data: [i64; 6]) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(data.to_vec(), [1, 6]), &Device::flex())
    }

    #[test]
    fn a_later_token_does_not_change_an_earlier_logit() {
        let config = LlamaConfig {
            vocab: 16,
            ..LlamaConfig::test()
        };
        let model = config.init(&Device::flex());
        let a = model
            .forward(tokens([1, 2, 3, 4, 5, 6]))
            .slice([0..1, 0..5]);
        let b = model
            .forward(tokens([1, 2, 3, 4, 5, 9]))
            .slice([0..1, 0..5]);
        a.into_data().assert_eq(&b.into_data(), true);
        let c = model
            .forward(tokens([1, 2, 3, 4, 5, 9]))
            .slice([0..1, 5..6]);
        let d = model
            .forward(tokens([1, 2, 7, 4, 5, 9]))
            .slice([0..1, 5..6]);
        assert_ne!(
            c.into_data(),
            d.into_data(),
            "an earlier token must change a later logit"
        );
    }

    #[test]
    fn nothing_is_allocated_before_use() {
        let model = LlamaConfig::test().init(&Device::flex());
        assert!(!model.output.as_ref().unwrap().weight.is_initialized());
        assert!(!model.tok_embeddings.weight.is_initialized());
    }

    #[test]
    fn the_count_of_parameters_is_what_the_model_holds() {
        for tied in [false, true] {
            let config = LlamaConfig {
                tied,
                ..LlamaConfig::test()
            };
            let held = config.init(&Device::flex()).num_params();
            assert_eq!(config.num_params(), held);
        }
    }
}
