//! A small transformer, its plan, and losses to compare.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Plan;

use crate::weights::deterministic;

#[derive(Module, Debug)]
pub(crate) struct Net {
    embedding: Embedding,
    norm: RmsNorm,
    wq: Linear,
    wk: Linear,
    ff: SwiGlu,
    w2: Linear,
    output: Linear,
}

const VOCAB: usize = 48;
const DIM: usize = 24;
const BATCH: usize = 4;
const SEQ: usize = 8;

impl Net {
    fn new(device: &Device) -> Self {
        Net {
            embedding: EmbeddingConfig::new(VOCAB, DIM).init(device),
            norm: RmsNormConfig::new(DIM).init(device),
            wq: LinearConfig::new(DIM, DIM).with_bias(false).init(device),
            wk: LinearConfig::new(DIM, DIM).init(device),
            ff: SwiGluConfig::new(DIM, DIM * 2).init(device),
            w2: LinearConfig::new(DIM * 2, DIM).init(device),
            output: LinearConfig::new(DIM, VOCAB).init(device),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embedding.forward(tokens);
        let y = self.norm.forward(x.clone());
        let q = self.wq.forward(y.clone());
        let k = self.wk.forward(y);
        let scores = q.matmul(k.clone().swap_dims(1, 2));
        let x = x + burn::tensor::activation::softmax(scores, 2).matmul(k);
        let f = self.w2.forward(self.ff.forward(x.clone()));
        self.output.forward(x + f)
    }
}

pub(crate) fn train(device: &Device, steps: usize, prepare: impl FnOnce(Net) -> Net) -> Vec<f64> {
    let mut net = prepare(deterministic(Net::new(device)));
    let mut optimizer = AdamWConfig::new().init();
    let loss_fn = CrossEntropyLossConfig::new().init(device);
    let mut losses = Vec::new();
    for step in 0..steps {
        let tokens: Vec<i32> = (0..BATCH * SEQ)
            .map(|i| ((i * 7 + step * 13 + 3) % VOCAB) as i32)
            .collect();
        let x = Tensor::<1, Int>::from_ints(tokens.as_slice(), device).reshape([BATCH, SEQ]);
        let y = x.clone().reshape([BATCH * SEQ]);
        let logits = net.forward(x).reshape([BATCH * SEQ, VOCAB]);
        let loss = loss_fn.forward(logits, y);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-2, net, gradients);
        losses.push(loss.into_scalar::<f64>());
    }
    losses
}

pub(crate) fn plan() -> Plan {
    Plan::new()
        .vocab("embedding")
        .colwise("wq")
        .colwise("wk")
        .colwise("ff.linear_inner")
        .colwise("ff.linear_outer")
        .rowwise("w2")
        .vocab("output")
}

pub(crate) fn close(found: &[f64], expected: &[f64], what: &str) {
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            ((a - b) / b).abs() < 1e-4,
            "{what}: step {step}: {a} differs from {b}\n{found:?}\n{expected:?}"
        );
    }
}
