//! A small transformer trains alike on every mesh.

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Int, Tensor};
use burn_dist::{DeviceMesh, Dist, ParallelizeWith, Plan};

mod transformer;
use transformer::deterministic;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    embedding: Embedding<B>,
    norm: RmsNorm<B>,
    wq: Linear<B>,
    wk: Linear<B>,
    ff: SwiGlu<B>,
    w2: Linear<B>,
    output: Linear<B>,
}

const VOCAB: usize = 48;
const DIM: usize = 24;
const BATCH: usize = 4;
const SEQ: usize = 8;

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
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

    fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
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

fn train<B: AutodiffBackend>(
    device: &B::Device,
    steps: usize,
    prepare: impl FnOnce(Net<B>) -> Net<B>,
) -> Vec<f64> {
    let mut net = prepare(deterministic(Net::<B>::new(device)));
    let mut optimizer = AdamWConfig::new().init();
    let loss_fn = CrossEntropyLossConfig::new().init(device);
    let mut losses = Vec::new();
    for step in 0..steps {
        let tokens: Vec<i32> = (0..BATCH * SEQ)
            .map(|i| ((i * 7 + step * 13 + 3) % VOCAB) as i32)
            .collect();
        let x = Tensor::<B, 1, Int>::from_ints(tokens.as_slice(), device).reshape([BATCH, SEQ]);
        let y = x.clone().reshape([BATCH * SEQ]);
        let logits = net.forward(x).reshape([BATCH * SEQ, VOCAB]);
        let loss = loss_fn.forward(logits, y);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-2, net, gradients);
        losses.push(loss.into_scalar().elem::<f64>());
    }
    losses
}

fn plan() -> Plan {
    Plan::new()
        .vocab("embedding")
        .colwise("wq")
        .colwise("wk")
        .colwise("ff.linear_inner")
        .colwise("ff.linear_outer")
        .rowwise("w2")
        .vocab("output")
}

fn close(found: &[f64], expected: &[f64], what: &str) {
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            ((a - b) / b).abs() < 1e-4,
            "{what}: step {step}: {a} differs from {b}\n{found:?}\n{expected:?}"
        );
    }
}

#[test]
fn every_mesh_trains_like_one_device() {
    let steps = 5;
    let expected = train::<Autodiff<Flex>>(&Default::default(), steps, |net| net);
    for text in [
        "",
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "tp=2",
        "tp=3",
        "fsdp=2,tp=2",
        "dp=2,fsdp=2",
        "tp=2,dp=3",
    ] {
        // Even the small gradients of this net are scattered.
        let mesh = DeviceMesh::builder()
            .axes(&text.parse().expect("a mesh"))
            .scatter_bytes_min(0)
            .build()
            .expect("a mesh");
        let losses = train::<Autodiff<Dist<Flex>>>(&mesh.device(), steps, |net| {
            net.parallelize_with(mesh.shape(), &plan()).expect("a plan")
        });
        close(&losses, &expected, text);
    }
}

#[test]
fn fuzzed_layouts_train_like_one_device() {
    let steps = 2;
    let expected = train::<Autodiff<Flex>>(&Default::default(), steps, |net| net);
    for seed in 0..6 {
        let mesh = DeviceMesh::builder()
            .axis("fsdp", 2)
            .axis("tp", 3)
            .fuzz_layouts(seed)
            .build()
            .expect("a mesh");
        let losses = train::<Autodiff<Dist<Flex>>>(&mesh.device(), steps, |net| net);
        close(&losses, &expected, &format!("seed {seed}"));
    }
}
