//! Trains two small towers to match images with their captions, as CLIP does (arXiv:2103.00020), each tower on
//! stages of its own: `cargo run --release -p clip -- pp=2,dp=2 4 1f1b` (axes, microbatches, schedule).
//!
//! The image tower is deeper than the text tower, and tables say which stage has which blocks. On a mesh without `pp`
//! the tables do nothing.
//!
//! Shape letters: `b` batch, `p` patches, `s` tokens, `n` either, `d` width, `e` width of what is compared.

use std::num::ParseIntError;
use std::ops::Range;
use std::process::ExitCode;

use anyhow::bail;
use burn::module::{Module, Param};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::launch::Stop;
use burn_dist::mesh::MeshShape;
use burn_dist::parallel::{DTensorError, ParallelError};
use burn_dist::schedule::ScheduleKind;
use burn_dist::trainer::batch::{Batch, Numbered};
use burn_dist::trainer::checkpoints::{Keeper, SoFar};
use burn_dist::trainer::exit::{End, exit};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::model::{Loss, Model, Tensors};
use burn_dist::trainer::optimizer::OptimizerConfig;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::{self, Phase};
use burn_dist::trainer::schedule::{Decay, Schedule};
use burn_dist::trainer::step::Recipe;
use burn_dist::trainer::voice::{complain, say};
use burn_dist::{DeviceMesh, Parallelize, ParallelizeWith, Plan};

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
const STEPS: usize = 60;
const LEARNING_RATE: f64 = 3e-3;
/// Burn's own settings of AdamW.
const OPTIMIZER: OptimizerConfig = OptimizerConfig {
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-5,
    weight_decay: 1e-4,
};

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
}

impl Clip {
    fn new(device: &Device) -> Self {
        let scale = Initializer::Constant { value: 2.0 };
        Self {
            patches: linear(PATCH_VALUES, WIDTH, device),
            image: Tower::new(IMAGE_BLOCKS, NUM_PATCHES, device),
            words: EmbeddingConfig::new(VOCAB, WIDTH).init(device),
            text: Tower::new(TEXT_BLOCKS, WORDS, device),
            scale: scale.init([1], device),
        }
    }

    /// Says which stage has what: on two, a tower each; on four, the image tower has the first three, the last of which
    /// has one of its blocks and the text tower's first.
    fn stages(plan: Plan, stages: usize) -> Result<Plan, Error> {
        let (image, text): (&[u32], &[u32]) = match stages {
            1 => return Ok(plan),
            2 => (&[0, 0, 0, 0], &[1, 1]),
            4 => (&[0, 1, 1, 2], &[2, 3]),
            _ => return Err(Error::Stages(stages)),
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
    type Config = ();
    type Batch = Pairs;

    fn build((): &(), device: &Device) -> Self {
        Self::new(device)
    }

    fn loss(&self, (images, texts): Tensors<Self>, _parts: usize) -> Loss {
        // The loss of a step is the mean over all rows.
        let share = images.dims()[0] as f64 / BATCH as f64;
        (self.contrast(images, texts) * share).into()
    }

    fn held_out(&self, (images, texts): Tensors<Self>) -> [Tensor<1>; 2] {
        let (rows, device) = (images.dims()[0], images.device());
        let count = Tensor::<1>::ones([1], &device) * rows as f64;
        [self.contrast(images, texts) * count.clone(), count]
    }

    fn facts((): &()) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Images with their texts.
struct Pairs {
    images: Vec<f32>,
    texts: Vec<i64>,
}

impl Batch for Pairs {
    type Tensors = (Tensor<3>, Tensor<2, Int>);

    fn split(&self, parts: usize) -> Vec<Self> {
        let rows = self.count();
        // 32 rows in 5 parts: 7, 7, 6, 6, 6.
        let start = |part: usize| part * (rows / parts) + part.min(rows % parts);
        let of = |part: usize| {
            let (start, end) = (start(part), start(part + 1));
            let values = NUM_PATCHES * PATCH_VALUES;
            Self {
                images: self.images[start * values..end * values].to_vec(),
                texts: self.texts[start * WORDS..end * WORDS].to_vec(),
            }
        };
        (0..parts).map(of).collect()
    }

    fn enter(&self, device: &Device, _by_process: bool) -> Result<Self::Tensors, DTensorError> {
        let rows = self.count();
        let images = TensorData::new(self.images.clone(), [rows, NUM_PATCHES, PATCH_VALUES]);
        let texts = TensorData::new(self.texts.clone(), [rows, WORDS]);
        Ok((
            Tensor::from_data(images, device),
            Tensor::from_data(texts, device),
        ))
    }

    fn count(&self) -> usize {
        self.texts.len() / WORDS
    }
}

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
    Pairs { images, texts }
}

/// Why the program does not train.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(
        "three arguments at most (axes of the mesh, microbatches, schedule), and there are {0}: clip pp=2,dp=2 4 1f1b"
    )]
    Arguments(usize),
    #[error("`{0}` is no number of microbatches: {1}")]
    Microbatches(String, ParseIntError),
    #[error("this example says what is on 1, 2 or 4 stages, not on {0}")]
    Stages(usize),
    #[error("the model does not fit the mesh: {0}")]
    Model(ParallelError),
    #[error(
        "a batch of {BATCH} row(s) cannot be cut into {0} microbatches: use at most {BATCH}, or a larger batch"
    )]
    Batch(usize),
}

/// Number of stages on a mesh: one if no axis is for them.
fn num_stages(mesh: &MeshShape, schedule: ScheduleKind) -> usize {
    let sizes = mesh.axes().iter();
    let pipeline = sizes.filter(|axis| axis.role.cuts_stages() && axis.size > 1);
    let per_rank = if schedule.is_v() { 2 } else { 1 };
    pipeline
        .map(|axis| per_rank * axis.size)
        .next()
        .unwrap_or(1)
}

fn train(arguments: &[String]) -> anyhow::Result<End> {
    if arguments.len() > 3 {
        bail!(Error::Arguments(arguments.len()));
    }
    let axes = arguments.first().map_or("", String::as_str);
    let microbatches = match arguments.get(1) {
        Some(text) => text
            .parse()
            .map_err(|error| Error::Microbatches(text.clone(), error))?,
        None => 4,
    };
    let schedule = match arguments.get(2) {
        Some(name) => name.parse()?,
        None => ScheduleKind::default(),
    };
    let mesh = DeviceMesh::parse(axes)?;
    let device = mesh.device().autodiff();
    device.seed(0);
    let model = Clip::new(&device);
    let plan = model.plan().schedule(schedule);
    let plan = Clip::stages(plan, num_stages(mesh.shape(), schedule))?;
    let model = model.parallelize_with(&mesh, &plan).map_err(Error::Model)?;
    if !(1..=BATCH).contains(&microbatches) {
        bail!(Error::Batch(microbatches));
    }
    let mesh = Mesh::of(mesh)?;
    let progress = Progress::lines(STEPS, 1, |step| {
        format!("step {:>2}  loss {:.5}", step.done, step.loss)
    });
    let stop = Stop::on_signals()?;
    let phase = Phase {
        schedule: Schedule {
            warm_up: 0,
            decay: Decay::Constant,
            ..Schedule::new(LEARNING_RATE, STEPS)
        },
        recipe: Recipe {
            accumulate: microbatches,
            optimizer: OPTIMIZER,
            ..Recipe::default()
        },
        progress: &progress,
        stop: &stop,
        before: &SoFar::of("train"),
        validation: None,
        metrics: &RunMetrics::none(),
    };
    let (model, trace) = run::run(
        model,
        &mut Numbered::new("things", BATCH, pairs),
        phase,
        &device,
        &mesh,
        &mut Keeper::none(),
    )?;
    if let Some(code) = stop.exit_code().filter(|_| trace.interrupted) {
        return Ok(End::Interrupted(code));
    }
    let unseen = pairs(STEPS * BATCH..(STEPS + 1) * BATCH);
    let (images, texts) = unseen.enter(&mesh.inference_device(), false)?;
    let best = model.valid().forward(images, texts).argmax(1);
    let found = best.into_data();
    let found = found.iter::<i64>().enumerate();
    let right = found.filter(|(row, best)| *row as i64 == *best).count();
    say!("{right} of {BATCH} images found their text");
    Ok(End::Done)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match train(&arguments) {
        Ok(end) => exit(Ok(end)),
        Err(error) => {
            complain(&error);
            ExitCode::from(2)
        }
    }
}
