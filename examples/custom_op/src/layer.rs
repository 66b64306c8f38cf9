//! A feed-forward block: up, bias and GELU in one kernel, down.

use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use burn_dist::Parallelize;

use crate::{Backend, bias_gelu};

/// `down(gelu(up(x) + bias))`. Over a tensor-parallel axis the columns of `up` are split, and so is what the kernel
/// works on.
#[derive(Module, Debug, Parallelize)]
pub struct FeedForward<B: Backend> {
    #[parallel(colwise)]
    up: Linear<B>,
    bias: Param<Tensor<B, 1>>,
    #[parallel(rowwise)]
    down: Linear<B>,
}

impl<B: Backend> FeedForward<B> {
    /// Makes a block of `width` features and `hidden` inside.
    pub fn new(width: usize, hidden: usize, device: &B::Device) -> Self {
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
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let h = bias_gelu(self.up.forward(x), self.bias.val());
        self.down.forward(h)
    }
}
