//! A feed-forward block: up, bias and GELU in one kernel, down.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_dist::Parallelize;

use crate::bias_gelu;

/// `down(gelu(up(x) + bias))`. Over a tensor-parallel axis the columns of `up` are split, and so is what the kernel
/// works on.
#[derive(Module, Debug, Parallelize)]
pub struct FeedForward {
    #[parallel(colwise)]
    up: Linear,
    bias: Param<Tensor<1>>,
    #[parallel(rowwise)]
    down: Linear,
}

impl FeedForward {
    /// Makes a block of `width` features and `hidden` inside.
    pub fn new(width: usize, hidden: usize, device: &Device) -> Self {
        let init = Initializer::Normal {
            mean: 0.0,
            std: 0.1,
        };
        let up = LinearConfig::new(width, hidden).with_bias(false);
        Self {
            up: up.init(device),
            bias: init.init([hidden], device),
            down: LinearConfig::new(hidden, width).init(device),
        }
    }

    /// `[batch, width]` to `[batch, width]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let h = bias_gelu(self.up.forward(x), self.bias.val());
        self.down.forward(h)
    }
}
