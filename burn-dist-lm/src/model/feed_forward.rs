use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use burn_dist::Parallelize;

/// The gated feed-forward layer: `w2(silu(w1 x) * w3 x)`.
///
/// # Source
/// Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202).
#[derive(Module, Debug, Parallelize)]
pub struct FeedForward {
    #[parallel(colwise)]
    pub(super) w1: Linear,
    #[parallel(rowwise)]
    pub(super) w2: Linear,
    #[parallel(colwise)]
    pub(super) w3: Linear,
}

impl FeedForward {
    /// Applies the layer to every token.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<3>) -> Tensor<3> {
        let [b, s, d] = x_bsd.dims();
        // One matrix of all tokens, as in attention.
        let x_td = x_bsd.reshape([b * s, d]);
        let gate_tf = silu(self.w1.forward(x_td.clone()));
        let out_td = self.w2.forward(gate_tf * self.w3.forward(x_td));
        out_td.reshape([b, s, d])
    }
}
