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
use burn::tensor::{Device, Tensor};
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
struct DistrictBatch {
    /// `[batch, features]`.
    inputs: Tensor<2>,
    /// `[batch]`.
    prices: Tensor<1>,
}

/// Scales features to between 0 and 1, with tensors that it holds.
#[derive(Clone, Debug)]
struct DistrictBatcher {
    min: Tensor<2>,
    max: Tensor<2>,
}

impl DistrictBatcher {
    fn new(device: &Device) -> Self {
        let max: [f32; NUM_FEATURES] = std::array::from_fn(|at| (at + 1) as f32 * 10.0);
        Self {
            min: Tensor::<1>::from_floats([0.0; NUM_FEATURES], device).unsqueeze(),
            max: Tensor::<1>::from_floats(max, device).unsqueeze(),
        }
    }
}

impl Batcher<District, DistrictBatch> for DistrictBatcher {
    fn batch(&self, items: Vec<District>, device: &Device) -> DistrictBatch {
        let inputs: Vec<Tensor<2>> = items
            .iter()
            .map(|item| Tensor::<1>::from_floats(item.features, device).unsqueeze())
            .collect();
        let prices = items
            .iter()
            .map(|item| Tensor::<1>::from_floats([item.price], device))
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
struct Model {
    input: Linear,
    output: Linear,
    activation: Relu,
}

impl Model {
    fn new(hidden: usize, device: &Device) -> Self {
        Self {
            input: LinearConfig::new(NUM_FEATURES, hidden).init(device),
            output: LinearConfig::new(hidden, 1).init(device),
            activation: Relu::new(),
        }
    }

    fn regress(&self, batch: DistrictBatch) -> RegressionOutput {
        let hidden = self.activation.forward(self.input.forward(batch.inputs));
        let output = self.output.forward(hidden);
        let targets: Tensor<2> = batch.prices.unsqueeze_dim(1);
        let loss = MseLoss::new().forward(output.clone(), targets.clone(), Reduction::Mean);
        RegressionOutput {
            loss,
            output,
            targets,
        }
    }
}

impl TrainStep for Model {
    type Input = DistrictBatch;
    type Output = RegressionOutput;

    fn step(&self, batch: DistrictBatch) -> TrainOutput<RegressionOutput> {
        let output = self.regress(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = DistrictBatch;
    type Output = RegressionOutput;

    fn step(&self, batch: DistrictBatch) -> RegressionOutput {
        self.regress(batch)
    }
}

/// The program.
pub struct SimpleRegression;

impl Program for SimpleRegression {
    const NAME: &'static str = "simple-regression";

    fn run(setup: &Setup) -> Numbers {
        let (device, size) = (&setup.device.clone().autodiff(), setup.size);
        let hidden = size.pick(16, 64);
        let model = Model::new(hidden, device);
        device.seed(SEED);
        let model = start(setup, model, |host| Model::new(hidden, host));

        let train = DataLoaderBuilder::new(DistrictBatcher::new(device))
            .batch_size(size.pick(24, 256))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(districts(size.pick(256, 16_512), 1));
        let valid = DataLoaderBuilder::new(DistrictBatcher::new(&setup.device))
            .batch_size(size.pick(24, 256))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(districts(size.pick(64, 2_064), 2));
        let log = Log::default();
        let training = SupervisedTraining::new(&setup.directory, train, valid)
            .metric_train_numeric(LossMetric::new())
            .metric_valid_numeric(LossMetric::new())
            .with_default_checkpointers()
            .num_epochs(size.pick(3, 30))
            .renderer(Box::new(log.clone()))
            .summary();
        let result = training.launch(Learner::new(model, AdamConfig::new().init(), 1e-3));
        result
            .model
            .save_file(setup.path("model"))
            .expect("the model is saved");
        log.numbers()
    }
}
