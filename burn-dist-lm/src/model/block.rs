use burn::module::Module;
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn_dist::Parallelize;
use burn_dist::nn::mixture::Mixture;

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
    /// None where experts take its place.
    pub(super) feed_forward: Option<FeedForward>,
    /// The experts.
    pub(super) mixture: Option<Mixture>,
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
        let normed_bsd = self.ffn_norm.forward(x_bsd.clone());
        let transformed = match (&self.feed_forward, &self.mixture) {
            (Some(feed_forward), _) => feed_forward.forward(normed_bsd),
            (None, Some(mixture)) => mixture.forward(normed_bsd).output,
            (None, None) => return x_bsd,
        };
        x_bsd + transformed
    }
}
