//! One step of training on random tokens.

use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Llama;

/// The optimizer of a model.
type Optim = ModuleOptimizer;

/// Makes a fresh AdamW with the settings of most Llamas.
pub fn optimizer() -> Optim {
    AdamWConfig::new()
        .with_beta_1(0.9)
        .with_beta_2(0.95)
        .with_epsilon(1e-8)
        .with_weight_decay(0.1)
        .init()
}

/// Token ids of a step and the one after each, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// The ids of all rows.
    pub tokens: Vec<i32>,
    /// The one after each.
    pub targets: Vec<i32>,
    /// Tokens of a row.
    pub seq: usize,
}

/// Batches of random tokens, without an end.
#[derive(Debug, Clone)]
pub struct RandomTokens {
    /// Rows of a batch.
    pub batch: usize,
    /// Tokens of a row.
    pub seq: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// The generator of the next.
    pub state: u64,
}

impl RandomTokens {
    /// Draws the next batch.
    pub fn next_batch(&mut self) -> Tokens {
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..self.batch {
            let row: Vec<i32> = (0..=self.seq).map(|_| self.draw()).collect();
            tokens.extend(&row[..self.seq]);
            targets.extend(&row[1..]);
        }
        Tokens {
            tokens,
            targets,
            seq: self.seq,
        }
    }

    /// SplitMix64 (Steele et al., 2014).
    fn draw(&mut self) -> i32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.vocab as u64) as i32
    }
}

impl Tokens {
    /// Returns the tokens and the targets of `parts` microbatches of as many rows each.
    fn on(&self, parts: usize, device: &Device) -> Vec<[Tensor<2, Int>; 2]> {
        let each = self.tokens.len() / parts;
        let part = |start: usize| {
            [&self.tokens, &self.targets].map(|ids| {
                let ids = ids[start..start + each].to_vec();
                Tensor::from_data(TensorData::new(ids, [each / self.seq, self.seq]), device)
            })
        };
        (0..parts).map(|number| part(number * each)).collect()
    }
}

/// Returns the mean cross entropy of `logits` against `targets`.
///
/// # Shapes
/// `logits`: `[b, s, v]`; `targets`: `[b, s]`; output: `[1]`.
fn cross_entropy(logits_bsv: Tensor<3>, targets_bs: Tensor<2, Int>) -> Tensor<1> {
    let [b, s, v] = logits_bsv.dims();
    let logits_tv = logits_bsv.reshape([b * s, v]);
    // Any shift leaves the value alone: the largest logit keeps the exponentials finite and needs no gradient.
    let shift_t1 = logits_tv.clone().detach().max_dim(1);
    let shifted_tv = logits_tv - shift_t1;
    let target_t1 = shifted_tv.clone().gather(1, targets_bs.reshape([b * s, 1]));
    let losses_t1 = shifted_tv.exp().sum_dim(1).log() - target_t1;
    losses_t1.mean()
}

/// Takes one optimizer step; returns the model and the loss before it, not yet read.
pub fn step(
    model: Llama,
    optim: &mut Optim,
    batch: &Tokens,
    rate: f64,
    device: &Device,
) -> (Llama, Tensor<1>) {
    step_of(model, optim, (batch, 1), rate, device)
}

/// Does what [`step`] does with a batch that is cut into so many microbatches.
pub fn step_of(
    model: Llama,
    optim: &mut Optim,
    (batch, microbatches): (&Tokens, usize),
    rate: f64,
    device: &Device,
) -> (Llama, Tensor<1>) {
    let mut accumulator = GradientsAccumulator::new();
    let mut sum: Option<Tensor<1>> = None;
    for [tokens, targets] in batch.on(microbatches, device) {
        let mut loss = cross_entropy(model.forward(tokens), targets);
        if microbatches > 1 {
            loss = loss / microbatches as f64;
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        accumulator.accumulate(&model, gradients);
        let loss = loss.inner();
        sum = Some(match sum {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
    let sum = sum.expect("a batch has a part");
    (optim.step(rate, model, accumulator.grads()), sum)
}
