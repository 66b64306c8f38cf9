use burn::module::Module;
use burn::nn::{Linear, RmsNorm};
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
    /// None if queries are not normalised.
    #[parallel(replicate)]
    pub(super) q_norm: Option<RmsNorm>,
    /// None if keys are not normalised.
    #[parallel(replicate)]
    pub(super) k_norm: Option<RmsNorm>,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    /// True if queries and keys are turned by their positions.
    pub(super) turns: bool,
    /// How many keys a query sees at most; all without a number.
    #[module(skip)]
    pub(super) window: Option<usize>,
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

        let q_bsq = self.placed(q_bsq, &self.q_norm, positions);
        let k_bsk = self.placed(k_bsk, &self.k_norm, positions);

        // The n query heads of a group see its one key/value head.
        let q_bknse = q_bsq.reshape([b, s, k, n, e]).permute([0, 2, 3, 1, 4]);
        let [k_bkse, v_bkse] =
            [k_bsk, v_bsk].map(|x_bsk| x_bsk.reshape([b, s, k, e]).permute([0, 2, 1, 3]));

        let options = AttentionOptions {
            mask: positions.mask.clone(),
            window: self.window,
            ..AttentionOptions::causal()
        };
        let out_bknse = grouped_attention(q_bknse, k_bkse, v_bkse, options);
        let out_tq = out_bknse.permute([0, 3, 1, 2, 4]).reshape([b * s, h * e]);
        linear(&self.wo, out_tq).reshape([b, s, d])
    }

    /// Normalises each head, and turns it by its position, where this layer does so.
    ///
    /// # Shapes
    /// Input and output: `[b, s, h * e]`, for any number of heads.
    fn placed(&self, x_bsq: Tensor<3>, norm: &Option<RmsNorm>, positions: &Positions) -> Tensor<3> {
        let [b, s, q] = x_bsq.dims();
        let e = self.head_dim;
        let x_bsq = match norm {
            Some(norm) => {
                let x_bshe = x_bsq.reshape([b, s, q / e, e]);
                norm.forward(x_bshe).reshape([b, s, q])
            }
            None => x_bsq,
        };
        match self.turns {
            true => positions.rope.apply(x_bsq),
            false => x_bsq,
        }
    }
}
