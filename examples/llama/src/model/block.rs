use burn::module::Module;
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;
use burn_dist::nn::AttentionBackend;

use super::{Attention, FeedForward, Positions};

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
    pub fn forward(&self, x_bsd: Tensor<B, 3>, positions: &Positions<B>) -> Tensor<B, 3> {
        let attended = self
            .attention
            .forward(self.attention_norm.forward(x_bsd.clone()), positions);
        let x_bsd = x_bsd + attended;
        let transformed = self
            .feed_forward
            .forward(self.ffn_norm.forward(x_bsd.clone()));
        x_bsd + transformed
    }
}
