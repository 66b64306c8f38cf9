use burn::module::Module;
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn_dist::Parallelize;

use super::{Attention, FeedForward, Positions};

/// One decoder layer: attention and feed-forward, each on a normalised input and added to the residual.
#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
pub struct Block {
    #[parallel(sequence)]
    pub(super) attention_norm: RmsNorm,
    pub(super) attention: Attention,
    #[parallel(sequence)]
    pub(super) ffn_norm: RmsNorm,
    pub(super) feed_forward: FeedForward,
}

impl Block {
    /// Applies the layer.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<3>, positions: &Positions) -> Tensor<3> {
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
