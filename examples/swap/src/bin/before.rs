//! An ordinary Burn training program: a small convolutional network (tanh and average pools, as in LeNet) learns to
//! read digits, on one device.

use burn::data::dataloader::DataLoaderBuilder;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AvgPool2d, AvgPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d, Tanh};
use burn::optim::AdamConfig;
use burn::store::ModuleRecord;
use burn::tensor::{Device, Tensor};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use swap::data::{DigitBatch, DigitBatcher, NUM_CLASSES, digits};
use swap::progress::Lines;

#[derive(Module, Debug)]
struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AvgPool2d,
    hidden: Linear,
    output: Linear,
    /// Smooth: at the kink of a ReLU, the last bit of a sum decides whether a gradient is there.
    activation: Tanh,
}

impl Cnn {
    fn new(device: &Device) -> Self {
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
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
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

    fn classify(&self, batch: DigitBatch) -> ClassificationOutput {
        let logits = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

impl TrainStep for Cnn {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Cnn {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// Returns the weights that training starts from, as a file would hold them.
fn initial_weights() -> ModuleRecord {
    let device = Device::flex();
    device.seed(42);
    Cnn::new(&device).into_record()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    let model = Cnn::new(&device).load_record(initial_weights());

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
        .renderer(Box::new(Lines::default()));
    training.launch(Learner::new(model, AdamConfig::new().init(), 1e-2));
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
