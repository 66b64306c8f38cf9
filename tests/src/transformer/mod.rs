//! A small Llama-like model, and how it is trained: what several tests look at.

pub mod run;
pub mod worlds;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Plan;

#[derive(Module, Debug)]
pub struct Block {
    attention_norm: RmsNorm,
    wq: Linear,
    wk: Linear,
    wv: Linear,
    wo: Linear,
    norm: RmsNorm,
    w1: Linear,
    w2: Linear,
    w3: Linear,
}

#[derive(Module, Debug)]
pub struct Net {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

pub const VOCAB: usize = 32;
pub const DIM: usize = 16;
pub const HEADS: usize = 4;
pub const BATCH: usize = 4;
pub const SEQ: usize = 8;

impl Block {
    fn new(dim: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Self {
            attention_norm: RmsNormConfig::new(dim).init(device),
            wq: linear(dim, dim),
            wk: linear(dim, dim),
            wv: linear(dim, dim),
            wo: linear(dim, dim),
            norm: RmsNormConfig::new(dim).init(device),
            w1: linear(dim, 2 * dim),
            w2: linear(2 * dim, dim),
            w3: linear(dim, 2 * dim),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, seq, dim] = x.dims();
        let heads = |x: Tensor<3>| x.reshape([batch, seq, HEADS, dim / HEADS]).swap_dims(1, 2);
        let y = self.attention_norm.forward(x.clone());
        let q = heads(self.wq.forward(y.clone()));
        let k = heads(self.wk.forward(y.clone()));
        let v = heads(self.wv.forward(y));
        let scores = q.matmul(k.transpose()) * 0.5;
        let mixed = softmax(scores, 3)
            .matmul(v)
            .swap_dims(1, 2)
            .reshape([batch, seq, dim]);
        let x = x + self.wo.forward(mixed);
        let y = self.norm.forward(x.clone());
        let hidden = silu(self.w1.forward(y.clone())) * self.w3.forward(y);
        x + self.w2.forward(hidden)
    }
}

impl Net {
    pub fn new(blocks: usize, device: &Device) -> Self {
        Self::wide(blocks, DIM, device)
    }

    pub fn wide(blocks: usize, dim: usize, device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(VOCAB, dim).init(device),
            blocks: (0..blocks).map(|_| Block::new(dim, device)).collect(),
            norm: RmsNormConfig::new(dim).init(device),
            output: LinearConfig::new(dim, VOCAB).with_bias(false).init(device),
        }
    }

    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self
            .blocks
            .iter()
            .fold(self.embedding.forward(tokens), |x, block| block.forward(x));
        self.output.forward(self.norm.forward(x))
    }
}

/// Megatron's tensor parallelism.
pub fn megatron() -> Plan {
    Plan::new()
        .vocab("embedding")
        .colwise("blocks.*.wq")
        .colwise("blocks.*.wk")
        .colwise("blocks.*.wv")
        .rowwise("blocks.*.wo")
        .colwise("blocks.*.w1")
        .colwise("blocks.*.w3")
        .rowwise("blocks.*.w2")
        .vocab("output")
}

/// The same with the sequence split between the products.
pub fn sequence_parallel() -> Plan {
    megatron().output("embedding", "[-, {tp}, -]")
}

/// A model, and what one of its training steps does on a mesh.
pub struct Training {
    pub net: Net,
    pub step: usize,
}

impl Training {
    pub fn loss(&self, device: &Device) -> Tensor<1> {
        let tokens: Vec<i32> = (0..BATCH * SEQ)
            .map(|i| ((i * 7 + self.step * 13 + 3) % VOCAB) as i32)
            .collect();
        let x = Tensor::<1, Int>::from_ints(tokens.as_slice(), device);
        let logits = self.net.forward(x.clone().reshape([BATCH, SEQ]));
        CrossEntropyLossConfig::new()
            .init(device)
            .forward(logits.reshape([BATCH * SEQ, VOCAB]), x)
    }
}
