//! A small network that predicts a price from eight features, after Burn's `simple-regression`.
//!
//! Its batcher makes two tensors per item and joins them.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::AdamConfig;
use burn::record::{CompactRecorder, NoStdTrainingRecorder};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::LossMetric;
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};

use crate::data::Source;
use crate::{Log, Numbers, Program, Setup, start};

const NUM_FEATURES: usize = 8;
const SEED: u64 = 1337;

/// A district: what is known of it and what houses cost there.
#[derive(Clone, Debug)]
struct District {
    features: [f32; NUM_FEATURES],
    price: f32,
}

fn districts(count: usize, seed: u64) -> InMemDataset<District> {
    let mut source = Source(seed);
    let items = (0..count).map(|_| {
        let features: [f32; NUM_FEATURES] =
            std::array::from_fn(|at| (at + 1) as f32 * 10.0 * source.unit());
        let price = features[0] / 5.0 + (features[1] / 20.0).powi(2) - features[7] / 80.0;
        District {
            features,
            price: price + 0.1 * source.normal(),
        }
    });
    InMemDataset::new(items.collect())
}

#[derive(Clone, Debug)]
struct DistrictBatch<B: Backend> {
    /// `[batch, features]`.
    inputs: Tensor<B, 2>,
    /// `[batch]`.
    prices: Tensor<B, 1>,
}

/// Scales features to between 0 and 1, with tensors that it holds.
#[derive(Clone, Debug)]
struct DistrictBatcher<B: Backend> {
    min: Tensor<B, 2>,
    max: Tensor<B, 2>,
}

impl<B: Backend> DistrictBatcher<B> {
    fn new(device: &B::Device) -> Self {
        let max: [f32; NUM_FEATURES] = std::array::from_fn(|at| (at + 1) as f32 * 10.0);
        Self {
            min: Tensor::<B, 1>::from_floats([0.0; NUM_FEATURES], device).unsqueeze(),
            max: Tensor::<B, 1>::from_floats(max, device).unsqueeze(),
        }
    }
}

impl<B: Backend> Batcher<B, District, DistrictBatch<B>> for DistrictBatcher<B> {
    fn batch(&self, items: Vec<District>, device: &B::Device) -> DistrictBatch<B> {
        let inputs: Vec<Tensor<B, 2>> = items
            .iter()
            .map(|item| Tensor::<B, 1>::from_floats(item.features, device).unsqueeze())
            .collect();
        let prices = items
            .iter()
            .map(|item| Tensor::<B, 1>::from_floats([item.price], device))
            .collect();
        let (min, max) = (
            self.min.clone().to_device(device),
            self.max.clone().to_device(device),
        );
        DistrictBatch {
            inputs: (Tensor::cat(inputs, 0) - min.clone()) / (max - min),
            prices: Tensor::cat(prices, 0),
        }
    }
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    input: Linear<B>,
    output: Linear<B>,
    activation: Relu,
}

impl<B: Backend> Model<B> {
    fn new(hidden: usize, device: &B::Device) -> Self {
        Self {
            input: LinearConfig::new(NUM_FEATURES, hidden).init(device),
            output: LinearConfig::new(hidden, 1).init(device),
            activation: Relu::new(),
        }
    }

    fn regress(&self, batch: DistrictBatch<B>) -> RegressionOutput<B> {
        let hidden = self.activation.forward(self.input.forward(batch.inputs));
        let output = self.output.forward(hidden);
        let targets: Tensor<B, 2> = batch.prices.unsqueeze_dim(1);
        let loss = MseLoss::new().forward(output.clone(), targets.clone(), Reduction::Mean);
        RegressionOutput {
            loss,
            output,
            targets,
        }
    }
}

impl<B: AutodiffBackend> TrainStep for Model<B> {
    type Input = DistrictBatch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: DistrictBatch<B>) -> TrainOutput<RegressionOutput<B>> {
        let output = self.regress(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Model<B> {
    type Input = DistrictBatch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: DistrictBatch<B>) -> RegressionOutput<B> {
        self.regress(batch)
    }
}

/// The program.
pub struct SimpleRegression;

impl Program for SimpleRegression {
    const NAME: &'static str = "simple-regression";

    fn run<B: AutodiffBackend>(setup: &Setup<B::Device>) -> Numbers {
        let (device, size) = (&setup.device, setup.size);
        let hidden = size.pick(16, 64);
        let model = Model::<B>::new(hidden, device);
        B::seed(device, SEED);
        let model = start::<B, _, _>(setup, model, || Model::new(hidden, &Default::default()));

        let train = DataLoaderBuilder::new(DistrictBatcher::<B>::new(device))
            .batch_size(size.pick(24, 256))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(districts(size.pick(256, 16_512), 1));
        let valid = DataLoaderBuilder::new(DistrictBatcher::<B::InnerBackend>::new(device))
            .batch_size(size.pick(24, 256))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(districts(size.pick(64, 2_064), 2));
        let log = Log::default();
        let training = SupervisedTraining::new(&setup.directory, train, valid)
            .metric_train_numeric(LossMetric::new())
            .metric_valid_numeric(LossMetric::new())
            .with_file_checkpointer(CompactRecorder::new())
            .num_epochs(size.pick(3, 30))
            .renderer(log.clone())
            .summary();
        let result = training.launch(Learner::new(model, AdamConfig::new().init(), 1e-3));
        result
            .model
            .save_file(setup.path("model"), &NoStdTrainingRecorder::new())
            .expect("the model is saved");
        log.numbers()
    }
}
