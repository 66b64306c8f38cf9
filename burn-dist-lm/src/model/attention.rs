use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn_dist::Parallelize;
use burn_dist::nn::{AttentionOptions, adapted_linear, grouped_attention};

use super::Positions;

/// Causal self-attention in which groups of query heads share a key/value head.
///
/// # Source
/// Ainslie et al., "GQA" (arXiv:2305.13245).
#[derive(Module, Debug, Parallelize)]
pub struct Attention {
    #[parallel(colwise, heads = self.num_kv_heads)]
    pub(super) wq: Linear,
    #[parallel(colwise, heads = self.num_kv_heads)]
    pub(super) wk: Linear,
    #[parallel(colwise, heads = self.num_kv_heads)]
    pub(super) wv: Linear,
    #[parallel(rowwise, heads = self.num_kv_heads)]
    pub(super) wo: Linear,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    /// The share of their input that adapters do not see in training.
    pub(super) dropout: f64,
}

impl Attention {
    /// Attends over the sequence.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<3>, positions: &Positions) -> Tensor<3> {
        let [b, s, d] = x_bsd.dims();
        let (h, k, e) = (self.num_heads, self.num_kv_heads, self.head_dim);
        let n = h / k;

        // One matrix of all tokens: a batch of small ones would cost a gradient matrix for each sequence.
        let x_td = x_bsd.reshape([b * s, d]);
        let linear = |layer, x_td| adapted_linear(layer, x_td, self.dropout);
        let q_bsq = linear(&self.wq, x_td.clone()).reshape([b, s, h * e]);
        let k_bsk = linear(&self.wk, x_td.clone()).reshape([b, s, k * e]);
        let v_bsk = linear(&self.wv, x_td).reshape([b, s, k * e]);

        let q_bsq = positions.rope.apply(q_bsq);
        let k_bsk = positions.rope.apply(k_bsk);

        // The n query heads of a group see its one key/value head.
        let q_bknse = q_bsq.reshape([b, s, k, n, e]).permute([0, 2, 3, 1, 4]);
        let [k_bkse, v_bkse] =
            [k_bsk, v_bsk].map(|x_bsk| x_bsk.reshape([b, s, k, e]).permute([0, 2, 1, 3]));

        let options = AttentionOptions {
            mask: positions.mask.clone(),
            ..AttentionOptions::causal()
        };
        let out_bknse = grouped_attention(q_bknse, k_bkse, v_bkse, options);
        let out_tq = out_bknse.permute([0, 3, 1, 2, 4]).reshape([b * s, h * e]);
        linear(&self.wo, out_tq).reshape([b, s, d])
    }
}
