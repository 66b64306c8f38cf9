use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;

use super::Positions;

/// Causal self-attention in which groups of query heads share a key/value head.
///
/// # Source
/// Ainslie et al., "GQA" (arXiv:2305.13245).
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    pub(super) wq: Linear<B>,
    pub(super) wk: Linear<B>,
    pub(super) wv: Linear<B>,
    pub(super) wo: Linear<B>,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
}

impl<B: Backend> Attention<B> {
    /// Attends over the sequence.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<B, 3>, positions: &Positions<B>) -> Tensor<B, 3> {
        let [b, s, _] = x_bsd.dims();
        let (h, k, e) = (self.num_heads, self.num_kv_heads, self.head_dim);

        let q_bhse = self.wq.forward(x_bsd.clone()).reshape([b, s, h, e]).swap_dims(1, 2);
        let k_bkse = self.wk.forward(x_bsd.clone()).reshape([b, s, k, e]).swap_dims(1, 2);
        let v_bkse = self.wv.forward(x_bsd).reshape([b, s, k, e]).swap_dims(1, 2);

        // The scale goes on the queries: they are smaller than the scores.
        let q_bhse = positions.rope.apply(q_bhse).mul_scalar((e as f64).powf(-0.5));
        let k_bhse = repeat_heads(positions.rope.apply(k_bkse), h / k);
        let v_bhse = repeat_heads(v_bkse, h / k);

        let scores_bhss = q_bhse.matmul(k_bhse.transpose());
        let weights_bhss = softmax(scores_bhss.mask_fill(positions.causal_11ss.clone(), f32::NEG_INFINITY), 3);
        let out_bhse = weights_bhss.matmul(v_bhse);
        self.wo.forward(out_bhse.swap_dims(1, 2).reshape([b, s, h * e]))
    }
}

/// Repeats each key/value head for its group of query heads: `[b, k, s, e]` to `[b, k * times, s, e]`.
fn repeat_heads<B: Backend>(x_bkse: Tensor<B, 4>, times: usize) -> Tensor<B, 4> {
    if times == 1 {
        return x_bkse;
    }
    let [b, k, s, e] = x_bkse.dims();
    x_bkse.reshape([b, k, 1, s, e]).expand([b, k, times, s, e]).reshape([b, k * times, s, e])
}
