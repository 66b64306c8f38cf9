//! Trains a small Llama-style decoder to predict the next byte of a text, on a mesh of devices:
//! `cargo run --release -p minimal-021 -- fsdp=2,tp=2`.
//!
//! Three things make it distributed: the type [`B`], the attributes of the modules, and `parallelize`. The rest is
//! ordinary Burn: no rank, no local shape and no collective.
//!
//! Shape letters: `b` batch, `s` sequence, `d` model width, `h` heads, `e` head width, `v` vocabulary.

use std::process::ExitCode;

use burn::backend::{Autodiff, Flex};
use burn::module::{Initializer, Module};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::{log_softmax, silu, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Int, Tensor, TensorData};
use burn_dist::mesh::MeshError;
use burn_dist::parallel::ParallelError;
use burn_dist::{DeviceMesh, Dist, Parallelize};

/// On one device this is `Autodiff<Flex>`.
type B = Autodiff<Dist<Flex>>;

const WIDTH: usize = 64;
const HIDDEN: usize = 176;
const HEADS: usize = 4;
const LAYERS: usize = 2;
/// Every byte is a token.
const VOCAB: usize = 256;
const BATCH: usize = 8;
const SEQ: usize = 32;
const STEPS: usize = 60;
const LEARNING_RATE: f64 = 3e-3;

const TEXT: &str = "\
This is the house that Jack built.
This is the malt that lay in the house that Jack built.
This is the rat that ate the malt that lay in the house that Jack built.
This is the cat that killed the rat that ate the malt that lay in the house that Jack built.
This is the dog that worried the cat that killed the rat that ate the malt that lay in the house that Jack built.
This is the cow with the crumpled horn that tossed the dog that worried the cat that killed the rat that ate the malt
that lay in the house that Jack built.
";

/// Rotary positions and the causal mask: what every block needs beside its input.
struct Positions<B: Backend> {
    /// `[s, 1, e / 2]`
    cos: Tensor<B, 3>,
    /// `[s, 1, e / 2]`
    sin: Tensor<B, 3>,
    /// `[s, s]`, true at the keys that come after a query.
    hidden: Tensor<B, 2, Bool>,
}

impl<B: Backend> Positions<B> {
    fn new(seq: usize, head_width: usize, device: &B::Device) -> Self {
        let half = head_width / 2;
        let angle = |i: usize| {
            let (position, pair) = ((i / half) as f64, (i % half) as f64);
            position * 1000_f64.powf(-pair / half as f64)
        };
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = (0..seq * half).map(|i| f(angle(i)) as f32).collect();
            Tensor::from_data(TensorData::new(values, [seq, 1, half]), device)
        };
        Self {
            cos: table(f64::cos),
            sin: table(f64::sin),
            hidden: Tensor::<B, 2, Bool>::tril_mask([seq, seq], 0, device),
        }
    }

    /// Turns the pairs `(i, i + e / 2)` of every head by an angle that grows with the position.
    ///
    /// # Shapes
    /// Input and output: `[b, s, h, e]`.
    fn rotate(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let (cos, sin) = (self.cos.clone().unsqueeze(), self.sin.clone().unsqueeze());
        let [first, second]: [_; 2] = x.chunk(2, 3).try_into().expect("heads have an even width");
        let left = first.clone() * cos.clone() - second.clone() * sin.clone();
        Tensor::cat(vec![left, second * cos + first * sin], 3)
    }
}

/// Causal self-attention. Over the axis `tp`, each rank has some of the heads.
#[derive(Module, Debug, Parallelize)]
struct Attention<B: Backend> {
    #[parallel(colwise, heads = self.heads)]
    query: Linear<B>,
    #[parallel(colwise, heads = self.heads)]
    key: Linear<B>,
    #[parallel(colwise, heads = self.heads)]
    value: Linear<B>,
    #[parallel(rowwise, heads = self.heads)]
    output: Linear<B>,
    heads: usize,
}

impl<B: Backend> Attention<B> {
    fn forward(&self, x: Tensor<B, 3>, positions: &Positions<B>) -> Tensor<B, 3> {
        let [b, s, d] = x.dims();
        let e = d / self.heads;
        let heads = |x: Tensor<B, 3>| x.reshape([b, s, self.heads, e]);
        let query = positions.rotate(heads(self.query.forward(x.clone())));
        let key = positions.rotate(heads(self.key.forward(x.clone())));
        let value = heads(self.value.forward(x));

        let scores = query.swap_dims(1, 2).matmul(key.permute([0, 2, 3, 1])) / (e as f64).sqrt();
        let hidden = positions.hidden.clone().unsqueeze::<4>();
        let weights = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 3);
        let attended = weights.matmul(value.swap_dims(1, 2)).swap_dims(1, 2);
        self.output.forward(attended.reshape([b, s, d]))
    }
}

/// SwiGLU: `down(silu(gate x) * up x)`. Over `tp`, each rank has some of the columns between.
#[derive(Module, Debug, Parallelize)]
struct FeedForward<B: Backend> {
    #[parallel(colwise)]
    gate: Linear<B>,
    #[parallel(colwise)]
    up: Linear<B>,
    #[parallel(rowwise)]
    down: Linear<B>,
}

impl<B: Backend> FeedForward<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let gate = silu(self.gate.forward(x.clone()));
        self.down.forward(gate * self.up.forward(x))
    }
}

/// One layer. As a unit, its parameters are gathered together over `fsdp`, one unit ahead of their use.
#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
struct Block<B: Backend> {
    #[parallel(sequence)]
    attention_norm: RmsNorm<B>,
    attention: Attention<B>,
    #[parallel(sequence)]
    feed_forward_norm: RmsNorm<B>,
    feed_forward: FeedForward<B>,
}

impl<B: Backend> Block<B> {
    fn forward(&self, x: Tensor<B, 3>, positions: &Positions<B>) -> Tensor<B, 3> {
        let normed = self.attention_norm.forward(x.clone());
        let x = x + self.attention.forward(normed, positions);
        let normed = self.feed_forward_norm.forward(x.clone());
        x + self.feed_forward.forward(normed)
    }
}

/// The decoder, from bytes to logits.
#[derive(Module, Debug, Parallelize)]
struct Decoder<B: Backend> {
    // From here to the last norm, activations are split along the sequence: sequence parallel.
    #[parallel(vocab, output = "[-, {tp}, -]")]
    embedding: Embedding<B>,
    blocks: Vec<Block<B>>,
    #[parallel(sequence)]
    norm: RmsNorm<B>,
    // The logits stay split along the vocabulary up to the loss: loss parallel.
    #[parallel(vocab)]
    head: Linear<B>,
    heads: usize,
}

impl<B: Backend> Decoder<B> {
    /// Makes a decoder whose parameters get their values when they are first used.
    fn new(device: &B::Device) -> Self {
        let linear = |from, to| -> Linear<B> {
            let init = Initializer::Normal {
                mean: 0.0,
                std: (from as f64).powf(-0.5),
            };
            let config = LinearConfig::new(from, to).with_bias(false);
            config.with_initializer(init).init(device)
        };
        let norm = || RmsNormConfig::new(WIDTH).init(device);
        let block = |_| Block {
            attention_norm: norm(),
            attention: Attention {
                query: linear(WIDTH, WIDTH),
                key: linear(WIDTH, WIDTH),
                value: linear(WIDTH, WIDTH),
                output: linear(WIDTH, WIDTH),
                heads: HEADS,
            },
            feed_forward_norm: norm(),
            feed_forward: FeedForward {
                gate: linear(WIDTH, HIDDEN),
                up: linear(WIDTH, HIDDEN),
                down: linear(HIDDEN, WIDTH),
            },
        };
        Self {
            embedding: EmbeddingConfig::new(VOCAB, WIDTH).init(device),
            blocks: (0..LAYERS).map(block).collect(),
            norm: norm(),
            head: linear(WIDTH, VOCAB),
            heads: HEADS,
        }
    }

    /// Returns the logits of the byte after each.
    ///
    /// # Shapes
    /// `bytes`: `[b, s]`; output: `[b, s, v]`.
    fn forward(&self, bytes: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [_, seq] = bytes.dims();
        let positions = Positions::new(seq, WIDTH / self.heads, &bytes.device());
        let x = self.embedding.forward(bytes);
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| block.forward(x, &positions));
        self.head.forward(self.norm.forward(x))
    }

    /// Returns the mean cross entropy of the next bytes.
    ///
    /// # Shapes
    /// `bytes` and `next`: `[b, s]`; output: `[1]`.
    fn loss(&self, bytes: Tensor<B, 2, Int>, next: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        let log_probabilities = log_softmax(self.forward(bytes), 2);
        -log_probabilities.gather(2, next.unsqueeze_dim(2)).mean()
    }
}

/// Returns the bytes of a step, and the byte after each: of the whole batch, on every mesh.
fn batch<B: Backend>(step: usize, device: &B::Device) -> [Tensor<B, 2, Int>; 2] {
    let starts = |row| (step * BATCH + row) * 37 % (TEXT.len() - SEQ);
    [0, 1].map(|ahead| {
        let rows = (0..BATCH).flat_map(|row| &TEXT.as_bytes()[starts(row) + ahead..][..SEQ]);
        let values = rows.map(|&byte| i64::from(byte)).collect::<Vec<_>>();
        Tensor::from_data(TensorData::new(values, [BATCH, SEQ]), device)
    })
}

/// Why the program does not train.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("one argument at most, the axes of the mesh, and there are {0}: minimal fsdp=2,tp=2")]
    Arguments(usize),
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error("the model does not fit the mesh: {0}")]
    Model(#[from] ParallelError),
}

fn train(arguments: &[String]) -> Result<(), Error> {
    let axes = match arguments {
        [] => "",
        [axes] => axes,
        _ => return Err(Error::Arguments(arguments.len())),
    };
    let mesh = DeviceMesh::parse(axes)?;
    let device = mesh.device();
    B::seed(&device, 0);
    let mut model = Decoder::<B>::new(&device).parallelize(&mesh)?;
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let [bytes, next] = batch::<B>(step, &device);
        let loss = model.loss(bytes, next);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        println!("step {:>2}  loss {:.5}", step + 1, loss.into_scalar());
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match train(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
