//! Trains two small towers to match images with their captions, as CLIP does (arXiv:2103.00020), each tower on
//! stages of its own: `cargo run --release -p clip -- train --mesh pp=2,dp=2 --microbatches 4 --schedule 1f1b`.
//!
//! The image tower is deeper than the text tower, and tables say which stage has which blocks. On a mesh without `pp`
//! the tables do nothing.
//!
//! Shape letters: `b` batch, `p` patches, `s` tokens, `n` either, `d` width, `e` width of what is compared.

use std::ops::Range;
use std::process::ExitCode;

use anyhow::bail;
use burn::module::{Module, Param};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::mesh::MeshShape;
use burn_dist::schedule::ScheduleChoice;
use burn_dist::trainer::args::StepArgs;
use burn_dist::trainer::batch::Column;
use burn_dist::trainer::job::Job;
use burn_dist::trainer::model::{Loss, Model, Tensors};
use burn_dist::trainer::program::Program;
use burn_dist::trainer::progress::Text;
use burn_dist::trainer::task::{self, Rows, Task, UNSEEN};
use burn_dist::trainer::voice::say;
use burn_dist::{Parallelize, Plan};
use clap::Args;

const WIDTH: usize = 32;
/// Width of what is compared.
const COMPARED: usize = 16;
const IMAGE_BLOCKS: usize = 4;
const TEXT_BLOCKS: usize = 2;
/// Pixels along an edge of an image, and of a patch, of 3 colours.
const EDGE: usize = 8;
const PATCH: usize = 2;
const NUM_PATCHES: usize = (EDGE / PATCH) * (EDGE / PATCH);
const PATCH_VALUES: usize = PATCH * PATCH * 3;
/// The description of an image: a shape, a colour, a column, a row.
const WORDS: usize = 4;
const VOCAB: usize = 4 + 3 + 3 + 3;
const BATCH: usize = 32;

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).init(device)
}

/// Attention of everything to everything, and two linear maps.
#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
struct Block {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    norm: LayerNorm,
    #[parallel(colwise)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            attention_norm: LayerNormConfig::new(WIDTH).init(device),
            query: linear(WIDTH, WIDTH, device),
            key: linear(WIDTH, WIDTH, device),
            value: linear(WIDTH, WIDTH, device),
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: linear(WIDTH, 4 * WIDTH, device),
            down: linear(4 * WIDTH, WIDTH, device),
        }
    }

    /// # Shapes
    /// Input and output: `[b, n, d]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let normed = self.attention_norm.forward(x.clone());
        let query = self.query.forward(normed.clone());
        let scores = query.matmul(self.key.forward(normed.clone()).transpose());
        let weights = softmax(scores / (WIDTH as f64).sqrt(), 2);
        let x = x + weights.matmul(self.value.forward(normed));
        let normed = self.norm.forward(x.clone());
        x + self.down.forward(gelu(self.up.forward(normed)))
    }
}

/// Blocks over patches or words, and what becomes of them: one vector of length 1.
#[derive(Module, Debug, Parallelize)]
struct Tower {
    positions: Param<Tensor<3>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    output: Linear,
}

impl Tower {
    fn new(blocks: usize, length: usize, device: &Device) -> Self {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Self {
            positions: small.init([1, length, WIDTH], device),
            blocks: (0..blocks).map(|_| Block::new(device)).collect(),
            norm: LayerNormConfig::new(WIDTH).init(device),
            output: linear(WIDTH, COMPARED, device),
        }
    }

    /// # Shapes
    /// Input: `[b, n, d]`; output: `[b, e]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let x = x + self.positions.val();
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.norm.forward(x.mean_dim(1)).squeeze_dim(1);
        let x: Tensor<2> = self.output.forward(x);
        let length = x.clone().powi_scalar(2).sum_dim(1).sqrt();
        x / length
    }
}

/// Both towers.
#[derive(Module, Debug, Parallelize)]
struct Clip {
    patches: Linear,
    image: Tower,
    words: Embedding,
    text: Tower,
    /// Logarithm of what similarities are multiplied by.
    scale: Param<Tensor<1>>,
    /// Stages on each rank along `pp`.
    per_rank: usize,
}

impl Clip {
    /// Says which stage has what: on two, a tower each; on four, the image tower has the first three, the last of which
    /// has one of its blocks and the text tower's first.
    fn stages(plan: Plan, stages: usize) -> anyhow::Result<Plan> {
        let (image, text): (&[u32], &[u32]) = match stages {
            1 => return Ok(plan),
            2 => (&[0, 0, 0, 0], &[1, 1]),
            4 => (&[0, 1, 1, 2], &[2, 3]),
            _ => bail!("this example says what is on 1, 2 or 4 stages, not on {stages}"),
        };
        let ends = [image[IMAGE_BLOCKS - 1], text[0]];
        Ok(plan
            .first("patches")
            .first("image.positions")
            .stage_table("image.blocks", image)
            .stage("image.norm", ends[0])
            .stage("image.output", ends[0])
            .stage("words", ends[1])
            .stage("text.positions", ends[1])
            .stage_table("text.blocks", text)
            .last("text.norm")
            .last("text.output")
            .last("scale"))
    }

    /// Returns how similar each image is to each text.
    ///
    /// # Shapes
    /// `images`: `[b, p, values of a patch]`; `texts`: `[b, s]`; output: `[b, b]`.
    fn forward(&self, images: Tensor<3>, texts: Tensor<2, Int>) -> Tensor<2> {
        let images = self.image.forward(self.patches.forward(images));
        let texts = self.text.forward(self.words.forward(texts));
        images.matmul(texts.transpose()) * self.scale.val().exp().unsqueeze()
    }

    /// Returns the mean cross entropy of the text of each image, and of the image of each text, among those of the
    /// microbatch.
    fn contrast(&self, images: Tensor<3>, texts: Tensor<2, Int>) -> Tensor<1> {
        let logits = self.forward(images, texts);
        let [b, _] = logits.dims();
        let own = Tensor::<1, Int>::arange(0..b as i64, &logits.device()).reshape([b, 1]);
        let of = |logits| log_softmax(logits, 1).gather(1, own.clone()).mean();
        (of(logits.clone()) + of(logits.transpose())) / -2.0
    }
}

impl Model for Clip {
    /// Stages on each rank along `pp`.
    type Config = usize;
    type Batch = Pairs;

    fn build(per_rank: &usize, device: &Device) -> Self {
        let scale = Initializer::Constant { value: 2.0 };
        Self {
            patches: linear(PATCH_VALUES, WIDTH, device),
            image: Tower::new(IMAGE_BLOCKS, NUM_PATCHES, device),
            words: EmbeddingConfig::new(VOCAB, WIDTH).init(device),
            text: Tower::new(TEXT_BLOCKS, WORDS, device),
            scale: scale.init([1], device),
            per_rank: *per_rank,
        }
    }

    fn plan_on(&self, mesh: &MeshShape) -> anyhow::Result<Plan> {
        let sizes = mesh.axes().iter();
        let mut pipeline = sizes.filter(|axis| axis.role.cuts_stages() && axis.size > 1);
        let stages = pipeline.next().map_or(1, |axis| self.per_rank * axis.size);
        Self::stages(self.plan(), stages)
    }

    fn loss(&self, (images, texts): Tensors<Self>, parts: usize) -> Loss {
        (self.contrast(images, texts) / parts as f64).into()
    }

    fn held_out(&self, (images, texts): Tensors<Self>) -> [Tensor<1>; 2] {
        let (rows, device) = (images.dims()[0], images.device());
        let count = Tensor::<1>::ones([1], &device) * rows as f64;
        [self.contrast(images, texts) * count.clone(), count]
    }

    /// Pixels have no gradient, and of a batch in microbatches fewer images and texts are compared.
    fn flops(_: &usize, (images, _): &Pairs) -> Option<f64> {
        let linear = 3 * WIDTH * WIDTH + 2 * WIDTH * 4 * WIDTH;
        let tower = |blocks: usize, length: usize| {
            blocks * length * (linear + 2 * length * WIDTH) + WIDTH * COMPARED
        };
        let row = tower(IMAGE_BLOCKS, NUM_PATCHES) + tower(TEXT_BLOCKS, WORDS);
        let pixels = NUM_PATCHES * PATCH_VALUES * WIDTH;
        let rows = images.rows();
        Some((rows * (6 * (row + rows * COMPARED) + 4 * pixels)) as f64)
    }

    fn facts(_: &usize) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Images, `[b, p, values of a patch]`, with their texts, `[b, s]`.
type Pairs = (Column<f32, 3>, Column<i64, 2>);

/// Returns images and texts by their numbers, those of a step all different: of the whole batch, on every mesh.
fn pairs(numbers: Range<usize>) -> Pairs {
    let (mut images, mut texts) = (Vec::new(), Vec::new());
    for number in numbers {
        // There are 4 x 3 x 3 x 3 things to see; 37 has no factor in common with their number.
        let thing = number * 37 % 108;
        let (shape, colour, column, line) = (thing % 4, thing / 4 % 3, thing / 12 % 3, thing / 36);
        texts.extend([shape, 4 + colour, 7 + column, 10 + line].map(|word| word as i64));
        let pixel = |x: usize, y: usize| {
            let (x, y) = (x.wrapping_sub(2 * column), y.wrapping_sub(2 * line));
            x < 4
                && y < 4
                && match shape {
                    0 => true,
                    1 => x == y,
                    2 => x == 0 || y == 0 || x == 3 || y == 3,
                    _ => (x + y).is_multiple_of(2),
                }
        };
        for patch in 0..NUM_PATCHES {
            let (left, top) = (
                patch % (EDGE / PATCH) * PATCH,
                patch / (EDGE / PATCH) * PATCH,
            );
            for value in 0..PATCH_VALUES {
                let (at, channel) = (value / 3, value % 3);
                let on = pixel(left + at % PATCH, top + at / PATCH) && channel == colour;
                images.push(if on { 1.0f32 } else { 0.0 });
            }
        }
    }
    (
        Column::new(images, &[NUM_PATCHES, PATCH_VALUES]),
        Column::new(texts, &[WORDS]),
    )
}

/// The model has no options.
#[derive(Debug, Args)]
struct Options {}

impl Task for Options {
    type Model = Clip;

    const STEPS: usize = 60;
    const BATCH: usize = BATCH;
    const PEAK: f64 = 3e-3;
    const HELD_OUT: usize = 1;

    /// Stages on each rank along `pp`.
    fn config(&self, step: &StepArgs) -> anyhow::Result<usize> {
        let pipeline = &step.devices.pipeline;
        let of_schedule = match &pipeline.schedule {
            ScheduleChoice::Kind(kind) if kind.is_v() => 2,
            _ => 1,
        };
        Ok(pipeline.stages_per_rank.unwrap_or(of_schedule) as usize)
    }

    fn name(&self) -> String {
        "clip".to_string()
    }

    fn each(&self) -> (usize, &'static str) {
        (1, "images")
    }

    fn rows(&self, _seed: u64) -> Rows<Pairs> {
        Rows::new("things", pairs)
    }

    fn line(&self, _job: &Job<Clip>) -> Option<Text> {
        Some(Box::new(|step| {
            format!("step {:>2}  loss {:.5}", step.done, step.loss)
        }))
    }

    fn end(&self, model: &Clip, device: &Device) -> anyhow::Result<()> {
        let (images, texts) = pairs(UNSEEN..UNSEEN + BATCH);
        let similar = model.forward(images.on(device), texts.on(device));
        let best = similar.argmax(1).try_into_data()?;
        let best = best.iter::<i64>().enumerate();
        let right = best.filter(|(row, best)| *row as i64 == *best).count();
        say!("{right} of {BATCH} images found their text");
        Ok(())
    }
}

fn main() -> ExitCode {
    task::main::<Options>(Program {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        about: env!("CARGO_PKG_DESCRIPTION"),
    })
}
