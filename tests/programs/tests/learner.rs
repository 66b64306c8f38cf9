//! burn-train's learner takes the resumable loader and its own checkpointer: a run that is left
//! and gone on with is the run that was not left; on another mesh, with another batch size, it sees the same samples.

use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep,
};
use burn_dist::data::{Loader, Position};
use burn_dist::{DeviceMesh, ParallelizeWith, Plan};
use programs::Log;

one_thread::one_thread!();

/// Samples of an epoch.
const SAMPLES: u16 = 22;

/// Makes a column of items, and keeps what it is given.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<u16>>>);

impl Batcher<u16, Tensor<2>> for Recording {
    fn batch(&self, items: Vec<u16>, device: &Device) -> Tensor<2> {
        self.0.lock().unwrap().extend(&items);
        let values: Vec<f32> = items
            .iter()
            .map(|item| f32::from(*item) / f32::from(SAMPLES))
            .collect();
        Tensor::<1>::from_floats(values.as_slice(), device).unsqueeze_dim(1)
    }
}

/// A line through the points (x, x).
#[derive(Module, Debug)]
struct Line {
    line: Linear,
}

impl Line {
    fn fit(&self, inputs: Tensor<2>) -> RegressionOutput {
        let output = self.line.forward(inputs.clone());
        RegressionOutput {
            loss: MseLoss::new().forward(output.clone(), inputs.clone(), Reduction::Mean),
            output,
            targets: inputs,
        }
    }
}

impl TrainStep for Line {
    type Input = Tensor<2>;
    type Output = RegressionOutput;

    fn step(&self, inputs: Tensor<2>) -> TrainOutput<RegressionOutput> {
        let output = self.fit(inputs);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Line {
    type Input = Tensor<2>;
    type Output = RegressionOutput;

    fn step(&self, inputs: Tensor<2>) -> RegressionOutput {
        self.fit(inputs)
    }
}

/// What a run leaves behind.
struct Left {
    /// The samples that it saw.
    seen: Vec<u16>,
    position: Position,
    /// The line that it found.
    weights: [TensorData; 2],
}

/// Trains until so many epochs are done, with records of each in `directory`; from those of an epoch, if one is given,
/// with the position after it.
fn train(
    (mesh, batch_size): (&str, usize),
    directory: &Path,
    from: Option<(usize, &Position)>,
    epochs: usize,
) -> Left {
    let mesh = DeviceMesh::parse(mesh).unwrap();
    let device = mesh.device().autodiff();
    let data = || InMemDataset::new((0..SAMPLES).collect());
    let seen = Recording::default();
    let loader = Loader::new(data(), seen.clone(), device.clone());
    let loader = loader.batch_size(batch_size).shuffle(3).num_workers(2);
    let loader = match from {
        Some((_, position)) => loader.resume(position).unwrap(),
        None => loader,
    };
    let valid = Loader::new(data(), Recording::default(), mesh.device());
    let training = SupervisedTraining::new(
        directory,
        Arc::new(loader.clone()),
        Arc::new(valid.batch_size(8)),
    )
    .with_training_strategy(ExecutionStrategy::single(device.clone()).into())
    .with_application_logger(None)
    .with_default_checkpointers()
    .num_epochs(epochs)
    .renderer(Box::new(Log::default()));
    let training = match from {
        Some((epoch, _)) => training.checkpoint(epoch),
        None => training,
    };
    let line = LinearConfig::new(1, 1).init(&device);
    let line = line.parallelize_with(&mesh, &Plan::new()).unwrap();
    let rates = ExponentialLrSchedulerConfig::new(0.1, 0.95).init().unwrap();
    let learner = Learner::new(Line { line }, AdamConfig::new().init(), rates);
    let found = training.launch(learner).model.line;
    let seen = seen.0.lock().unwrap().clone();
    let bias = found.bias.expect("a line has one").val();
    Left {
        seen,
        position: loader.position(),
        weights: [found.weight.val().into_data(), bias.into_data()],
    }
}

/// Starts the runs of a test from one model: the records of its first epoch.
fn first_epoch(roots: [&Path; 2]) -> Position {
    let left = train(("fsdp=2", 4), roots[0], None, 1);
    let to = roots[1].join("checkpoint");
    std::fs::create_dir_all(&to).unwrap();
    copy(&roots[0].join("checkpoint"), &to);
    left.position
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => std::fs::copy(entry.path(), to).map(drop).unwrap(),
        }
    }
}

#[test]
fn a_learner_goes_on_as_if_it_had_not_been_left() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = first_epoch([whole.path(), parts.path()]);
    let expected = train(("fsdp=2", 4), whole.path(), Some((1, &first)), 4);
    let samples = usize::from(SAMPLES);
    assert_eq!(expected.seen.len(), 3 * samples);
    for epoch in expected.seen.chunks(samples) {
        let mut sorted = epoch.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..SAMPLES).collect::<Vec<_>>());
    }

    let second = train(("fsdp=2", 4), parts.path(), Some((1, &first)), 2);
    assert_eq!((second.position.epoch, second.position.sample), (2, 0));
    let rest = train(("fsdp=2", 4), parts.path(), Some((2, &second.position)), 4);
    assert_eq!([&second.seen[..], &rest.seen].concat(), expected.seen);
    assert_eq!(rest.weights, expected.weights);

    let names = std::fs::read_dir(parts.path().join("checkpoint")).unwrap();
    let names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for expected in ["model-4.bpk", "optim-4.bpk", "scheduler-4.bpk"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
}

#[test]
fn another_mesh_and_batch_size_go_on_with_the_same_samples() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = first_epoch([whole.path(), parts.path()]);
    let expected = train(("fsdp=2", 4), whole.path(), Some((1, &first)), 3);
    let found = train(("fsdp=3", 5), parts.path(), Some((1, &first)), 3);
    assert_eq!(found.seen, expected.seen);
}
