//! burn-train's learner takes the resumable loader and the recorder that leaves tensors on the ranks: a run that is left
//! and gone on with is the run that was not left; on another mesh, with another batch size, it sees the same samples.

use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::backend::{Autodiff, Flex};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep,
};
use burn_dist::checkpoint::DistRecorder;
use burn_dist::data::{Loader, Position};
use burn_dist::{DeviceMesh, Dist, ParallelizeWith, Plan};
use programs::Log;

one_thread::one_thread!();

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
    let device = mesh.device();
    let data = || InMemDataset::new((0..SAMPLES).collect());
    let seen = Recording::default();
    let loader = Loader::<OnMesh, _, _>::new(data(), seen.clone(), device.clone());
    let loader = loader.batch_size(batch_size).shuffle(3).num_workers(2);
    let loader = match from {
        Some((_, position)) => loader.resume(position).unwrap(),
        None => loader,
    };
    let valid = Loader::<Dist<Flex>, _, _>::new(data(), Recording::default(), device.clone());
    let training = SupervisedTraining::new(
        directory,
        Arc::new(loader.clone()),
        Arc::new(valid.batch_size(8)),
    )
    .with_training_strategy(ExecutionStrategy::<OnMesh>::single(device.clone()).into())
    .with_application_logger(None)
    .with_file_checkpointer(DistRecorder)
    .num_epochs(epochs)
    .renderer(Log::default());
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
    assert!(names.contains(&"model-4.dist".to_string()), "{names:?}");
    assert!(names.contains(&"optim-4.tensors".to_string()), "{names:?}");
}

#[test]
fn another_mesh_and_batch_size_go_on_with_the_same_samples() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = first_epoch([whole.path(), parts.path()]);
    let expected = train(("fsdp=2", 4), whole.path(), Some((1, &first)), 3);
    let found = train(("fsdp=3", 5), parts.path(), Some((1, &first)), 3);
    assert_eq!(found.seen, expected.seen);
}
