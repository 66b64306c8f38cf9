use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

use super::Positions;
use crate::fused;

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
    /// Whether scores and what is made of them are one operation.
    pub(super) fused: bool,
}

impl<B: Backend> Attention<B> {
    /// Attends over the sequence.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<B, 3>, positions: &Positions<B>) -> Tensor<B, 3> {
        let [b, s, d] = x_bsd.dims();
        let (h, k, e) = (self.num_heads, self.num_kv_heads, self.head_dim);
        let n = h / k;

        // One matrix of all tokens: a batch of small ones would cost a gradient matrix for each sequence.
        let x_td = x_bsd.reshape([b * s, d]);
        let q_bsq = self.wq.forward(x_td.clone()).reshape([b, s, h * e]);
        let k_bsk = self.wk.forward(x_td.clone()).reshape([b, s, k * e]);
        let v_bsk = self.wv.forward(x_td).reshape([b, s, k * e]);

        // The scale goes on the queries: they are smaller than the scores.
        let q_bsq = positions
            .rope
            .apply(q_bsq)
            .mul_scalar((e as f64).powf(-0.5));
        let k_bsk = positions.rope.apply(k_bsk);

        // The n query heads of a group see its one key/value head by broadcasting.
        let q_bknse = q_bsq.reshape([b, s, k, n, e]).permute([0, 2, 3, 1, 4]);
        let k_bsk1e = k_bsk.reshape([b, s, k, 1, e]);
        let v_bk1se = v_bsk.reshape([b, s, k, 1, e]).permute([0, 2, 3, 1, 4]);

        let out_bknse = match self.fused {
            true => fused::attention(q_bknse, k_bsk1e.permute([0, 2, 3, 1, 4]), v_bk1se),
            false => {
                let scores_bknss = q_bknse.matmul(k_bsk1e.permute([0, 2, 3, 4, 1]));
                let hidden = positions.causal_ss.clone().unsqueeze::<5>();
                let weights_bknss = softmax(scores_bknss.mask_fill(hidden, f32::NEG_INFINITY), 4);
                weights_bknss.matmul(v_bk1se)
            }
        };
        let out_tq = out_bknse.permute([0, 3, 1, 2, 4]).reshape([b * s, h * e]);
        self.wo.forward(out_tq).reshape([b, s, d])
    }
}
