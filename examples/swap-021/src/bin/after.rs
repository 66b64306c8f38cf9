//! An ordinary Burn training program: a small convolutional network (tanh and average pools, as in LeNet) learns to
//! read digits, on a mesh of devices.

use burn::backend::{Autodiff, Flex};
use burn::data::dataloader::DataLoaderBuilder;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AvgPool2d, AvgPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d, Tanh};
use burn::optim::AdamConfig;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_dist::{DeviceMesh, Dist, ParallelizeWith, Plan};
use swap::data::{DigitBatch, DigitBatcher, NUM_CLASSES, digits};
use swap::progress::Lines;

type B = Autodiff<Dist<Flex>>;

#[derive(Module, Debug)]
struct Cnn<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    pool: AvgPool2d,
    hidden: Linear<B>,
    output: Linear<B>,
    /// Smooth: at the kink of a ReLU, the last bit of a sum decides whether a gradient is there.
    activation: Tanh,
}

impl<B: Backend> Cnn<B> {
    fn new(device: &B::Device) -> Self {
        let conv =
            |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            conv1: conv([1, 4]).init(device),
            conv2: conv([4, 8]).init(device),
            pool: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            hidden: LinearConfig::new(8 * 7 * 7, 64).init(device),
            output: LinearConfig::new(64, NUM_CLASSES).init(device),
            activation: Tanh::new(),
        }
    }

    /// `[batch, 1, 28, 28]` to `[batch, classes]`.
    fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self
            .pool
            .forward(self.activation.forward(self.conv1.forward(images)));
        let x = self
            .pool
            .forward(self.activation.forward(self.conv2.forward(x)));
        let x = self
            .activation
            .forward(self.hidden.forward(x.flatten(1, 3)));
        self.output.forward(x)
    }

    fn classify(&self, batch: DigitBatch<B>) -> ClassificationOutput<B> {
        let logits = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

impl<B: AutodiffBackend> TrainStep for Cnn<B> {
    type Input = DigitBatch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: DigitBatch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Cnn<B> {
    type Input = DigitBatch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: DigitBatch<B>) -> ClassificationOutput<B> {
        self.classify(batch)
    }
}

/// Returns the weights that training starts from, as a file would hold them.
fn initial_weights() -> Vec<u8> {
    let device = Default::default();
    Flex::seed(&device, 42);
    let record = Cnn::<Flex>::new(&device).into_record();
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    Recorder::<Flex>::record(&recorder, record, ()).expect("records go into memory")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mesh = DeviceMesh::parse(std::env::args().nth(1).as_deref().unwrap_or("fsdp=2"))?;
    let device = mesh.device();
    let record =
        BinBytesRecorder::<FullPrecisionSettings>::default().load(initial_weights(), &device)?;
    let model = Cnn::<B>::new(&device)
        .load_record(record)
        .parallelize_with(&mesh, &Plan::new())?;

    let train = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(50)
        .num_workers(1)
        .build(digits(640, 1));
    let valid = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(50)
        .num_workers(1)
        .build(digits(160, 2));
    let directory = std::env::temp_dir().join(format!("burn-swap-{}", std::process::id()));
    let training = SupervisedTraining::new(&directory, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .num_epochs(4)
        .renderer(Lines::default());
    training.launch(Learner::new(model, AdamConfig::new().init(), 1e-2));
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
