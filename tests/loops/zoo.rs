//! One model with everything that makes a loop awkward: tied, frozen and unused weights, dropout, prime sizes, fewer
//! rows than ranks, a scalar; two optimizers, two backward passes a step, and inference between steps.

use burn::module::{Module, Param};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig,
};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, activation};
use burn_dist::{ParallelizeWith, Plan};

use super::meshes::{Outcome, builder, settings, weights};
use crate::weights::deterministic;

/// Prime, as most sizes here.
const VOCAB: usize = 13;
const DIM: usize = 8;
const HIDDEN: usize = 14;
const BATCH: usize = 5;
const SEQ: usize = 4;
const STEPS: usize = 4;

#[derive(Module, Debug)]
struct Block {
    norm: RmsNorm,
    up: Linear,
    dropout: Dropout,
    down: Linear,
}

#[derive(Module, Debug)]
struct Zoo {
    /// Of tokens, and of logits.
    embedding: Embedding,
    blocks: Vec<Block>,
    frozen: Linear,
    unused: Linear,
    /// Seven rows of one column, then one row.
    narrow: Linear,
    wide: Linear,
    scale: Param<Tensor<1>>,
}

impl Zoo {
    fn new(dropout: f64, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let block = || Block {
            norm: RmsNormConfig::new(DIM).init(device),
            up: linear(DIM, HIDDEN),
            dropout: DropoutConfig::new(dropout).init(),
            down: linear(HIDDEN, DIM),
        };
        Self {
            embedding: EmbeddingConfig::new(VOCAB, DIM).init(device),
            blocks: vec![block(), block()],
            frozen: linear(DIM, DIM).no_grad(),
            unused: linear(3, 5),
            narrow: linear(DIM, 1),
            wide: linear(1, 7),
            scale: Param::from_tensor(Tensor::ones([1], device)),
        }
    }

    /// Logits `[tokens, vocab]`, and what is regressed aside.
    fn forward(&self, tokens: Tensor<2, Int>) -> (Tensor<2>, Tensor<3>) {
        let mut x = self.embedding.forward(tokens);
        for block in &self.blocks {
            let hidden = activation::silu(block.up.forward(block.norm.forward(x.clone())));
            x = x + block.down.forward(block.dropout.forward(hidden));
        }
        x = x.clone() + activation::tanh(self.frozen.forward(x));
        let aside = self.wide.forward(self.narrow.forward(x.clone()));
        let [batch, seq, dim] = x.dims();
        let x = (x * self.scale.val().reshape([1, 1, 1])).reshape([batch * seq, dim]);
        (x.matmul(self.embedding.weight.val().transpose()), aside)
    }
}

/// Megatron's split of the blocks, with the sequence split between them.
fn split() -> Plan {
    Plan::new()
        .output("embedding", "[-, {tp}, -]")
        .colwise("blocks.*.up")
        .rowwise("blocks.*.down")
        .output("blocks.*.down", "[-, {tp}, -]")
}

fn tokens(salt: usize, device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i32> = (0..BATCH * SEQ)
        .map(|i| ((i * 5 + salt * 7 + i * i) % VOCAB) as i32)
        .collect();
    Tensor::<1, Int>::from_ints(tokens.as_slice(), device).reshape([BATCH, SEQ])
}

fn train(device: &Device, dropout: f64, place: impl FnOnce(Zoo) -> Zoo) -> Outcome {
    device.seed(3);
    let zoo = deterministic(Zoo::new(dropout, device));
    let frozen = zoo.frozen.clone().no_grad();
    let mut zoo = place(Zoo { frozen, ..zoo });
    let mut body = AdamWConfig::new().init();
    let momentum = MomentumConfig::new().with_momentum(0.5);
    let mut tables = SgdConfig::new().with_momentum(Some(momentum)).init();
    let table_ids = [zoo.embedding.weight.id, zoo.scale.id];
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (logits, _) = zoo.forward(tokens(step, device));
        let targets = tokens(step, device).reshape([BATCH * SEQ, 1]);
        let loss = activation::log_softmax(logits, 1)
            .gather(1, targets)
            .mean()
            .neg();
        // A second pass over other data, in the same step.
        let (_, aside) = zoo.forward(tokens(step + 100, device));
        let aside = (aside - 1.0).square().mean();
        let mut accumulator = GradientsAccumulator::new();
        let mut first = loss.backward();
        let tied = GradientsParams::from_params(&mut first, &zoo, &table_ids);
        accumulator.accumulate(&zoo, GradientsParams::from_grads(first, &zoo));
        let second = GradientsParams::from_grads(aside.backward(), &zoo);
        accumulator.accumulate(&zoo, second);
        zoo = body.step(1e-2, zoo, accumulator.grads());
        zoo = tables.step(5e-2, zoo, tied);
        losses.push(loss.into_scalar());
        losses.push(aside.into_scalar());
        // Inference, without dropout.
        let (logits, _) = zoo.valid().forward(tokens(step, device));
        losses.push(logits.abs().mean().into_scalar());
    }
    Outcome {
        losses,
        weights: weights(&zoo),
    }
}

#[test]
fn every_strategy_runs_the_whole_zoo_like_one_device() {
    let expected = train(&Device::flex().autodiff(), 0.0, |zoo| zoo);
    for setting in settings() {
        let mesh = setting.builder().build().expect("a mesh");
        let plan = setting.plan(split()).unit("blocks").unit("");
        let found = train(&mesh.device().autodiff(), 0.0, |zoo| {
            zoo.parallelize_with(&mesh, &plan).expect("a plan")
        });
        found.assert_close(&expected, &setting.to_string());
    }
}

#[test]
fn dropout_drops_the_same_elements_on_every_mesh() {
    // Flex draws other numbers: here the one device is a mesh of one.
    let one = builder("").build().expect("a mesh");
    let expected = train(&one.device().autodiff(), 0.4, |zoo| zoo);
    let without = train(&one.device().autodiff(), 0.0, |zoo| zoo);
    assert_ne!(
        expected.losses[0], without.losses[0],
        "something is dropped"
    );
    for setting in settings() {
        let mesh = setting.builder().build().expect("a mesh");
        let plan = setting.plan(split()).unit("blocks");
        let found = train(&mesh.device().autodiff(), 0.4, |zoo| {
            zoo.parallelize_with(&mesh, &plan).expect("a plan")
        });
        found.assert_close(&expected, &format!("dropout on {setting}"));
    }
}
