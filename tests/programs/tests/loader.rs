//! burn-train's learner takes the resumable loader: a run that is left after two epochs and resumed on another mesh,
//! with another batch size, sees the samples of one that goes on.

use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::backend::{Autodiff, Flex};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep,
};
use burn_dist::data::{Loader, Position};
use burn_dist::{DeviceMesh, Dist};
use programs::Log;

type OnMesh = Autodiff<Dist<Flex>>;

/// Samples of an epoch.
const SAMPLES: u16 = 22;

/// Makes a column of items, and keeps what it is given.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<u16>>>);

impl<B: Backend> Batcher<B, u16, Tensor<B, 2>> for Recording {
    fn batch(&self, items: Vec<u16>, device: &B::Device) -> Tensor<B, 2> {
        self.0.lock().unwrap().extend(&items);
        let values: Vec<f32> = items
            .iter()
            .map(|item| f32::from(*item) / f32::from(SAMPLES))
            .collect();
        Tensor::<B, 1>::from_floats(values.as_slice(), device).unsqueeze_dim(1)
    }
}

/// A line through the points (x, x).
#[derive(Module, Debug)]
struct Line<B: Backend> {
    line: Linear<B>,
}

impl<B: Backend> Line<B> {
    fn fit(&self, inputs: Tensor<B, 2>) -> RegressionOutput<B> {
        let output = self.line.forward(inputs.clone());
        RegressionOutput {
            loss: MseLoss::new().forward(output.clone(), inputs.clone(), Reduction::Mean),
            output,
            targets: inputs,
        }
    }
}

impl<B: AutodiffBackend> TrainStep for Line<B> {
    type Input = Tensor<B, 2>;
    type Output = RegressionOutput<B>;

    fn step(&self, inputs: Tensor<B, 2>) -> TrainOutput<RegressionOutput<B>> {
        let output = self.fit(inputs);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Line<B> {
    type Input = Tensor<B, 2>;
    type Output = RegressionOutput<B>;

    fn step(&self, inputs: Tensor<B, 2>) -> RegressionOutput<B> {
        self.fit(inputs)
    }
}

/// Trains for so many epochs; returns the samples that were seen, and where the loader is.
fn train(
    (mesh, batch_size): (&str, usize),
    from: Option<&Position>,
    epochs: usize,
) -> (Vec<u16>, Position) {
    let mesh = DeviceMesh::parse(mesh).unwrap();
    let device = mesh.device();
    let data = || InMemDataset::new((0..SAMPLES).collect());
    let seen = Recording::default();
    let loader = Loader::<OnMesh, _, _>::new(data(), seen.clone(), device.clone());
    let loader = loader.batch_size(batch_size).shuffle(3).num_workers(2);
    let loader = match from {
        Some(position) => loader.resume(position).unwrap(),
        None => loader,
    };
    let valid = Loader::<Dist<Flex>, _, _>::new(data(), Recording::default(), device.clone());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
    let training = SupervisedTraining::new(
        directory,
        Arc::new(loader.clone()),
        Arc::new(valid.batch_size(8)),
    )
    .with_training_strategy(ExecutionStrategy::<OnMesh>::single(device.clone()).into())
    .with_application_logger(None)
    .num_epochs(epochs)
    .renderer(Log::default());
    let model = Line {
        line: LinearConfig::new(1, 1).init(&device),
    };
    training.launch(Learner::new(model, SgdConfig::new().init(), 0.1));
    let seen = seen.0.lock().unwrap().clone();
    (seen, loader.position())
}

#[test]
fn a_learner_goes_on_with_the_samples_that_would_have_followed() {
    let (whole, _) = train(("fsdp=2", 4), None, 4);
    assert_eq!(whole.len(), 4 * usize::from(SAMPLES));
    for epoch in whole.chunks(SAMPLES.into()) {
        let mut sorted = epoch.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..SAMPLES).collect::<Vec<_>>());
    }
    let (before, position) = train(("fsdp=2", 4), None, 2);
    assert_eq!((position.epoch, position.sample), (2, 0));
    let (after, _) = train(("fsdp=3", 5), Some(&position), 2);
    assert_eq!([before, after].concat(), whole);
}
