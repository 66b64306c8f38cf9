use burn::module::Module;
use burn::nn::{Linear, RmsNorm};
use burn::tensor::Tensor;
use burn_dist::Parallelize;
use burn_dist::nn::mixture::{Mixed, Mixture};
use burn_dist::nn::{AttentionOptions, attention};

/// Causal self-attention, without positions: the task has no need of them.
#[derive(Module, Debug, Parallelize)]
pub struct Attention {
    #[parallel(colwise, heads = self.heads)]
    pub(super) query: Linear,
    #[parallel(colwise, heads = self.heads)]
    pub(super) key: Linear,
    #[parallel(colwise, heads = self.heads)]
    pub(super) value: Linear,
    #[parallel(rowwise, heads = self.heads)]
    pub(super) output: Linear,
    pub(super) heads: usize,
}

impl Attention {
    /// Attends over the sequence.
    ///
    /// # Shapes
    /// Input and output: `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<3>) -> Tensor<3> {
        let [b, s, d] = x_bsd.dims();
        let heads = |x: Tensor<3>| {
            x.reshape([b, s, self.heads, d / self.heads])
                .swap_dims(1, 2)
        };
        let query = heads(self.query.forward(x_bsd.clone()));
        let key = heads(self.key.forward(x_bsd.clone()));
        let value = heads(self.value.forward(x_bsd));
        let attended = attention(query, key, value, AttentionOptions::causal());
        self.output
            .forward(attended.swap_dims(1, 2).reshape([b, s, d]))
    }
}

/// One layer: attention and a mixture of experts, each on a normalised input and added to the residual.
#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
pub struct Block {
    #[parallel(sequence)]
    pub(super) attention_norm: RmsNorm,
    pub(super) attention: Attention,
    #[parallel(sequence)]
    pub(super) mixture_norm: RmsNorm,
    pub(super) mixture: Mixture,
}

impl Block {
    /// Applies the layer.
    ///
    /// # Shapes
    /// Input: `[b, s, d]`.
    pub fn forward(&self, x: Tensor<3>) -> Mixed {
        let x = x.clone() + self.attention.forward(self.attention_norm.forward(x));
        let mixed = self.mixture.forward(self.mixture_norm.forward(x.clone()));
        Mixed {
            output: x + mixed.output,
            ..mixed
        }
    }
}
