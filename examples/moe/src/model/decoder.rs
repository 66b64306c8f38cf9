use burn::module::Module;
use burn::nn::{Embedding, Linear, RmsNorm};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};
use burn_dist::Parallelize;

use super::{Block, Config};

/// How much the loss that balances experts counts (Switch, arXiv:2101.03961, section 2.2).
const BALANCE_WEIGHT: f64 = 1e-2;
/// How much the loss that keeps the router's logits small counts (ST-MoE, arXiv:2202.08906, section 4.2).
const Z_WEIGHT: f64 = 1e-3;

/// The decoder, from tokens to logits.
#[derive(Module, Debug, Parallelize)]
pub struct Decoder {
    #[parallel(vocab, first)]
    pub(super) embedding: Embedding,
    #[parallel(stages)]
    pub(super) blocks: Vec<Block>,
    #[parallel(sequence, last)]
    pub(super) norm: RmsNorm,
    #[parallel(vocab, last)]
    pub(super) head: Linear,
    #[module(skip)]
    pub(crate) config: Config,
}

/// The losses of a batch, and what became of its tokens.
pub struct Losses {
    /// The loss to train on: cross entropy, and the others by their weights.
    pub total: Tensor<1>,
    /// Mean cross entropy of the next tokens.
    pub cross_entropy: Tensor<1>,
    /// See [`Mixed::balance`](burn_dist::nn::mixture::Mixed::balance); the mean over blocks, as the next one.
    pub balance: Tensor<1>,
    /// See [`Mixed::z`](burn_dist::nn::mixture::Mixed::z).
    pub z: Tensor<1>,
    /// Pairs of a token and a choice that were dropped, in all blocks.
    pub dropped: Tensor<1>,
    /// Pairs that each expert of the first block was chosen for: `[e]`.
    pub load: Tensor<1>,
}

impl Decoder {
    /// Returns the losses of a batch.
    ///
    /// # Shapes
    /// `tokens` and `next`: `[b, s]`.
    pub fn losses(&self, tokens: Tensor<2, Int>, next: Tensor<2, Int>) -> Losses {
        let mut x = self.embedding.forward(tokens);
        let mut sums: Option<[Tensor<1>; 3]> = None;
        let mut load = None;
        for block in &self.blocks {
            let mixed = block.forward(x);
            x = mixed.output;
            load.get_or_insert(mixed.load);
            let of_block = [mixed.balance, mixed.z, mixed.dropped];
            sums = Some(match sums {
                None => of_block,
                Some([balance, z, dropped]) => {
                    let [more_balance, more_z, more_dropped] = of_block;
                    [balance + more_balance, z + more_z, dropped + more_dropped]
                }
            });
        }
        let [balance, z, dropped] = sums.expect("a model has a block");
        let blocks = self.blocks.len() as f64;
        let (balance, z) = (balance / blocks, z / blocks);
        let logits = self.head.forward(self.norm.forward(x));
        let of_next = log_softmax(logits, 2).gather(2, next.unsqueeze_dim(2));
        let cross_entropy = -of_next.mean();
        let extra = balance.clone() * BALANCE_WEIGHT + z.clone() * Z_WEIGHT;
        Losses {
            total: cross_entropy.clone() + extra,
            cross_entropy,
            balance,
            z,
            dropped,
            load: load.expect("a model has a block"),
        }
    }
}
