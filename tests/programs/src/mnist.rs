//! A convolutional network with batch norms that reads pictures, after Burn's `mnist`.
//!
//! Its batcher prepares images on a plain device, as its mapper does; a composed schedule, early stopping and an
//! evaluation follow.

use std::sync::Arc;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::data::dataset::transform::{ComposedDataset, Mapper, MapperDataset, PartialDataset};
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig,
    PaddingConfig2d, Relu,
};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn::train::{
    ClassificationOutput, EvaluatorBuilder, InferenceStep, Learner, MetricEarlyStoppingStrategy,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};

use crate::data::{NUM_CLASSES, Picture, SIDE, pictures};
use crate::{Log, Numbers, Program, Setup, start};

const SEED: u64 = 42;

/// An image as a tensor of the plain device.
#[derive(Clone, Debug)]
struct Prepared {
    /// `[1, SIDE, SIDE]`.
    image: Tensor<3>,
    label: u8,
}

/// Normalizes pixels, and mirrors the picture if that is asked for.
struct Prepare {
    mirror: bool,
}

impl Mapper<Picture, Prepared> for Prepare {
    fn map(&self, item: &Picture) -> Prepared {
        let image = Tensor::<2>::from_data(item.pixels, &Device::flex());
        let image = ((image.reshape([1, SIDE, SIDE]) / 255) - 0.1307) / 0.3081;
        Prepared {
            image: if self.mirror { image.flip([1]) } else { image },
            label: item.label,
        }
    }
}

#[derive(Clone, Debug)]
struct Batch {
    /// `[batch, SIDE, SIDE]`.
    images: Tensor<3>,
    /// `[batch]`.
    targets: Tensor<1, Int>,
}

#[derive(Clone, Debug)]
struct PictureBatcher;

impl Batcher<Prepared, Batch> for PictureBatcher {
    fn batch(&self, items: Vec<Prepared>, device: &Device) -> Batch {
        let targets = items
            .iter()
            .map(|item| {
                let label = TensorData::from([i64::from(item.label)]);
                Tensor::<1, Int>::from_data(label, &Device::flex())
            })
            .collect();
        let images = items.into_iter().map(|item| item.image).collect();
        let (images, targets) = (Tensor::cat(images, 0), Tensor::cat(targets, 0));
        Batch {
            images: Tensor::from_data(images.into_data(), device),
            targets: Tensor::from_data(targets.into_data(), device),
        }
    }
}

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    activation: Relu,
}

impl Block {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Valid)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            activation: Relu::new(),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.norm.forward(self.conv.forward(x));
        self.pool.forward(self.activation.forward(x))
    }
}

#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
    dropout: Dropout,
    hidden: Vec<Linear>,
    output: Linear,
    activation: Gelu,
}

impl Model {
    fn new(channels: usize, hidden: usize, dropout: f64, device: &Device) -> Self {
        // 28 - 2 = 26, halved 13; 13 - 2 = 11, halved 5.
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        Self {
            blocks: vec![
                Block::new([1, channels], device),
                Block::new([channels, channels], device),
            ],
            dropout: DropoutConfig::new(dropout).init(),
            hidden: vec![linear(channels * 5 * 5, hidden), linear(hidden, hidden)],
            output: linear(hidden, NUM_CLASSES),
            activation: Gelu::new(),
        }
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let [rows, height, width] = batch.images.dims();
        let mut images = batch.images.reshape([rows, 1, height, width]).detach();
        for block in &self.blocks {
            images = block.forward(images);
        }
        let mut x: Tensor<2> = images.flatten(1, 3);
        for linear in &self.hidden {
            x = self.activation.forward(linear.forward(x));
            x = self.dropout.forward(x);
        }
        let output = self.output.forward(x);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// The program.
pub struct Mnist;

impl Program for Mnist {
    const NAME: &'static str = "mnist";

    fn run(setup: &Setup) -> Numbers {
        let (device, size) = (&setup.device.clone().autodiff(), setup.size);
        device.seed(SEED);
        let (channels, hidden) = size.pick((4, 16), (64, 128));
        let dropout = setup.dropout(0.25);
        let model = Model::new(channels, hidden, dropout, device);
        let model = start(setup, model, |host| {
            Model::new(channels, hidden, dropout, host)
        });

        let all = Arc::new(pictures(size.pick(140, 1_280), 1));
        let (split, end) = (size.pick(100, 1_024), all.len());
        let batch = size.pick(20, 256);
        let plain = PartialDataset::new(all.clone(), 0, split);
        let both = [false, true]
            .map(|mirror| MapperDataset::new(plain.clone(), Prepare { mirror }))
            .into();
        let train = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(batch)
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(ComposedDataset::new(both));
        let valid = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(batch)
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(MapperDataset::new(
                PartialDataset::new(all, split, end),
                Prepare { mirror: false },
            ));
        let schedule = ComposedLrSchedulerConfig::new()
            .cosine(CosineAnnealingLrSchedulerConfig::new(1.0, 2000))
            .linear(LinearLrSchedulerConfig::new(1e-8, 1.0, 2000))
            .linear(LinearLrSchedulerConfig::new(1e-2, 1e-6, 10000));
        let log = Log::default();
        let training = SupervisedTraining::new(&setup.directory, train, valid)
            .metrics((AccuracyMetric::new(), LossMetric::new()))
            .metric_train_numeric(LearningRateMetric::new())
            .with_default_checkpointers()
            .early_stopping(MetricEarlyStoppingStrategy::new(
                &LossMetric::new(),
                Aggregate::Mean,
                Direction::Lowest,
                Split::Valid,
                StoppingCondition::NoImprovementSince { n_epochs: 5 },
            ))
            .num_epochs(size.pick(2, 1))
            .renderer(Box::new(log.clone()))
            .summary();
        let optimizer = AdamWConfig::new()
            .with_cautious_weight_decay(true)
            .with_weight_decay(5e-5);
        let result = training.launch(Learner::new(
            model,
            optimizer.init(),
            schedule.init().expect("a schedule"),
        ));

        let test = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(batch)
            .num_workers(setup.workers)
            .build(MapperDataset::new(
                pictures(2 * batch, 2),
                Prepare { mirror: false },
            ));
        let evaluator = EvaluatorBuilder::new(&setup.directory)
            .renderer(result.renderer)
            .metrics((AccuracyMetric::new(), LossMetric::new()))
            .summary()
            .build(result.model.clone());
        evaluator.eval("Plain", test);
        result
            .model
            .save_file(setup.path("model"))
            .expect("the model is saved");
        log.numbers()
    }
}
