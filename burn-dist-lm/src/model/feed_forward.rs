use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use burn_dist::Parallelize;
use burn_dist::nn::adapted_linear;

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
    /// The share of their input that adapters do not see in training.
    pub(super) dropout: f64,
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
        let linear = |layer, x| adapted_linear(layer, x, self.dropout);
        let gate_tf = silu(linear(&self.w1, x_td.clone()));
        let out_td = linear(&self.w2, gate_tf * linear(&self.w3, x_td));
        out_td.reshape([b, s, d])
    }
}
