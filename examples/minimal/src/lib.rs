//! A small Llama-style decoder over bytes, and a text to train it on. The modules are those of a program for one device
//! but for `#[parallel(...)]`: no rank, no local shape and no collective.
//!
//! Shape letters: `b` batch, `s` sequence, `d` model width, `h` heads, `e` head width, `v` vocabulary.

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
};
use burn::tensor::activation::{log_softmax, silu, softmax};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_dist::Parallelize;

const WIDTH: usize = 64;
const HIDDEN: usize = 176;
const HEADS: usize = 4;
const LAYERS: usize = 2;
/// Every byte is a token.
const VOCAB: usize = 256;
const BATCH: usize = 8;
const SEQ: usize = 32;
/// Steps of the training.
pub const STEPS: usize = 60;
/// The step size of the optimizer.
pub const LEARNING_RATE: f64 = 3e-3;

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
struct Positions {
    /// `[s, 1, e / 2]`
    cos: Tensor<3>,
    /// `[s, 1, e / 2]`
    sin: Tensor<3>,
    /// `[s, s]`, true at the keys that come after a query.
    hidden: Tensor<2, Bool>,
}

impl Positions {
    fn new(seq: usize, head_width: usize, device: &Device) -> Self {
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
            hidden: Tensor::<2, Bool>::tril_mask([seq, seq], 0, device),
        }
    }

    /// Turns the pairs `(i, i + e / 2)` of every head by an angle that grows with the position.
    ///
    /// # Shapes
    /// Input and output: `[b, s, h, e]`.
    fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let (cos, sin) = (self.cos.clone().unsqueeze(), self.sin.clone().unsqueeze());
        let [first, second]: [_; 2] = x.chunk(2, 3).try_into().expect("heads have an even width");
        let left = first.clone() * cos.clone() - second.clone() * sin.clone();
        Tensor::cat(vec![left, second * cos + first * sin], 3)
    }
}

/// Causal self-attention. Over the axis `tp`, each rank has some of the heads.
#[derive(Module, Debug, Parallelize)]
struct Attention {
    #[parallel(colwise, heads = self.heads)]
    query: Linear,
    #[parallel(colwise, heads = self.heads)]
    key: Linear,
    #[parallel(colwise, heads = self.heads)]
    value: Linear,
    #[parallel(rowwise, heads = self.heads)]
    output: Linear,
    heads: usize,
}

impl Attention {
    fn forward(&self, x: Tensor<3>, positions: &Positions) -> Tensor<3> {
        let [b, s, d] = x.dims();
        let e = d / self.heads;
        let heads = |x: Tensor<3>| x.reshape([b, s, self.heads, e]);
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
struct FeedForward {
    #[parallel(colwise)]
    gate: Linear,
    #[parallel(colwise)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

impl FeedForward {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(self.gate.forward(x.clone()));
        self.down.forward(gate * self.up.forward(x))
    }
}

/// One layer. As a unit, its parameters are gathered together over `fsdp`, one unit ahead of their use.
#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
struct Block {
    #[parallel(sequence)]
    attention_norm: RmsNorm,
    attention: Attention,
    #[parallel(sequence)]
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

impl Block {
    fn forward(&self, x: Tensor<3>, positions: &Positions) -> Tensor<3> {
        let normed = self.attention_norm.forward(x.clone());
        let x = x + self.attention.forward(normed, positions);
        let normed = self.feed_forward_norm.forward(x.clone());
        x + self.feed_forward.forward(normed)
    }
}

/// The decoder, from bytes to logits.
#[derive(Module, Debug, Parallelize)]
pub struct Decoder {
    // From here to the last norm, activations are split along the sequence: sequence parallel.
    #[parallel(vocab, output = "[-, {tp}, -]")]
    embedding: Embedding,
    blocks: Vec<Block>,
    #[parallel(sequence)]
    norm: RmsNorm,
    // The logits stay split along the vocabulary up to the loss: loss parallel.
    #[parallel(vocab)]
    head: Linear,
    heads: usize,
}

impl Decoder {
    /// Makes a decoder whose parameters get their values when they are first used.
    pub fn new(device: &Device) -> Self {
        let linear = |from, to| -> Linear {
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
    pub fn forward(&self, bytes: Tensor<2, Int>) -> Tensor<3> {
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
    pub fn loss(&self, bytes: Tensor<2, Int>, next: Tensor<2, Int>) -> Tensor<1> {
        let log_probabilities = log_softmax(self.forward(bytes), 2);
        -log_probabilities.gather(2, next.unsqueeze_dim(2)).mean()
    }
}

/// Returns the bytes of a step, and the byte after each: of the whole batch, on every mesh.
pub fn batch(step: usize, device: &Device) -> [Tensor<2, Int>; 2] {
    let starts = |row| (step * BATCH + row) * 37 % (TEXT.len() - SEQ);
    [0, 1].map(|ahead| {
        let rows = (0..BATCH).flat_map(|row| &TEXT.as_bytes()[starts(row) + ahead..][..SEQ]);
        let values = rows.map(|&byte| i64::from(byte)).collect::<Vec<_>>();
        Tensor::from_data(TensorData::new(values, [BATCH, SEQ]), device)
    })
}

/// Reads the axes of the mesh from the command line, such as `fsdp=2,tp=2`; without any, the mesh is one device.
///
/// # Errors
/// More than one argument.
pub fn axes() -> Result<String, Arguments> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => Ok(String::new()),
        [axes] => Ok(axes.clone()),
        _ => Err(Arguments(arguments.len())),
    }
}

/// There are more arguments than one.
#[derive(Debug, thiserror::Error)]
#[error("one argument at most, the axes of the mesh, and there are {0}: minimal fsdp=2,tp=2")]
pub struct Arguments(usize);
