//! One layer and its parts.

use burn::module::Module;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;
use burn_dist::nn::{AttentionBackend, AttentionOptions, grouped_attention};

use super::Rope;

/// Causal self-attention in which groups of query heads share a key/value head.
///
/// # Source
/// Ainslie et al., "GQA" (arXiv:2305.13245).
#[derive(Module, Debug, Parallelize)]
pub struct Attention<B: Backend> {
    #[parallel(colwise, heads = self.num_kv_heads)]
    pub(super) wq: Linear<B>,
    #[parallel(colwise, heads = self.num_kv_heads)]
    pub(super) wk: Linear<B>,
    #[parallel(colwise, heads = self.num_kv_heads)]
    pub(super) wv: Linear<B>,
    #[parallel(rowwise, heads = self.num_kv_heads)]
    pub(super) wo: Linear<B>,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
}

impl<B: AttentionBackend> Attention<B> {
    /// Attends over the sequence.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<B, 3>, rope: &Rope<B>) -> Tensor<B, 3> {
        let [b, s, d] = x_bsd.dims();
        let (h, k, e) = (self.num_heads, self.num_kv_heads, self.head_dim);
        let n = h / k;

        // One matrix of all tokens: a batch of small ones would cost a gradient matrix for each sequence.
        let x_td = x_bsd.reshape([b * s, d]);
        let q_bsq = self.wq.forward(x_td.clone()).reshape([b, s, h * e]);
        let k_bsk = self.wk.forward(x_td.clone()).reshape([b, s, k * e]);
        let v_bsk = self.wv.forward(x_td).reshape([b, s, k * e]);

        let q_bsq = rope.apply(q_bsq);
        let k_bsk = rope.apply(k_bsk);

        // The n query heads of a group see its one key/value head.
        let q_bknse = q_bsq.reshape([b, s, k, n, e]).permute([0, 2, 3, 1, 4]);
        let [k_bkse, v_bkse] =
            [k_bsk, v_bsk].map(|x_bsk| x_bsk.reshape([b, s, k, e]).permute([0, 2, 1, 3]));

        let causal = AttentionOptions::causal();
        let out_bknse = grouped_attention(q_bknse, k_bkse, v_bkse, causal);
        let out_tq = out_bknse.permute([0, 3, 1, 2, 4]).reshape([b * s, h * e]);
        self.wo.forward(out_tq).reshape([b, s, d])
    }
}

/// The gated feed-forward layer: `w2(silu(w1 x) * w3 x)`.
///
/// # Source
/// Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202).
#[derive(Module, Debug, Parallelize)]
pub struct FeedForward<B: Backend> {
    #[parallel(colwise)]
    pub(super) w1: Linear<B>,
    #[parallel(rowwise)]
    pub(super) w2: Linear<B>,
    #[parallel(colwise)]
    pub(super) w3: Linear<B>,
}

impl<B: Backend> FeedForward<B> {
    /// Applies the layer to every token.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<B, 3>) -> Tensor<B, 3> {
        let [b, s, d] = x_bsd.dims();
        // One matrix of all tokens, as in attention.
        let x_td = x_bsd.reshape([b * s, d]);
        let gate_tf = silu(self.w1.forward(x_td.clone()));
        let out_td = self.w2.forward(gate_tf * self.w3.forward(x_td));
        out_td.reshape([b, s, d])
    }
}

/// One decoder layer: attention and feed-forward, each on a normalised input and added to the residual.
#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
pub struct Block<B: Backend> {
    #[parallel(sequence)]
    pub(super) attention_norm: RmsNorm<B>,
    pub(super) attention: Attention<B>,
    #[parallel(sequence)]
    pub(super) ffn_norm: RmsNorm<B>,
    pub(super) feed_forward: FeedForward<B>,
}

impl<B: AttentionBackend> Block<B> {
    /// Applies the layer.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<B, 3>, rope: &Rope<B>) -> Tensor<B, 3> {
        let attended = self
            .attention
            .forward(self.attention_norm.forward(x_bsd.clone()), rope);
        let x_bsd = x_bsd + attended;
        let transformed = self
            .feed_forward
            .forward(self.ffn_norm.forward(x_bsd.clone()));
        x_bsd + transformed
    }
}
