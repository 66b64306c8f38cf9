//! All that burn-train's supervised training offers, on a mesh: metrics, checkpoints and resuming from them,
//! accumulation of gradients, early stopping, interruption, gradient checkpointing. A run differs from that on plain
//! Flex by its device alone; on one rank numbers, weights and every value of a checkpoint are those of Flex.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::AdamConfig;
use burn::tensor::{Bytes, Device, Tensor, TensorData, Tolerance};
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    InferenceStep, Interrupter, Learner, MetricEarlyStoppingStrategy, RegressionOutput,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_dist::{DeviceMesh, ParallelizeWith, Plan, Regions};
use burn_pack::{Reader, Scalar};
use programs::{Log, Numbers};

one_thread::one_thread_per_process!();

/// Samples of an epoch: six batches, the last one short.
const SAMPLES: u16 = 22;
const BATCH: usize = 4;
const WIDTH: usize = 8;

/// Inputs with their targets.
#[derive(Clone, Debug)]
struct Batch {
    inputs: Tensor<2>,
    targets: Tensor<2>,
}

/// Makes batches, and asks for an end in the middle of an epoch if it is told to.
#[derive(Clone)]
struct Rows {
    made: Arc<AtomicUsize>,
    interrupt: Option<(usize, Interrupter)>,
}

impl Batcher<u16, Batch> for Rows {
    fn batch(&self, items: Vec<u16>, device: &Device) -> Batch {
        let made = 1 + self.made.fetch_add(1, Ordering::Relaxed);
        if let Some((_, interrupter)) = self.interrupt.as_ref().filter(|(at, _)| *at == made) {
            interrupter.stop(Some("enough"));
        }
        let value = |item: &u16, i: usize| ((usize::from(*item) * 37 + i * 11) % 97) as f32 / 97.0;
        let inputs: Vec<f32> = items
            .iter()
            .flat_map(|item| (0..WIDTH).map(move |i| value(item, i)))
            .collect();
        let targets: Vec<f32> = items
            .iter()
            .map(|item| value(item, 1) * value(item, 2) - value(item, 5))
            .collect();
        let rows = items.len();
        Batch {
            inputs: Tensor::from_data(TensorData::new(inputs, [rows, WIDTH]), device),
            targets: Tensor::from_data(TensorData::new(targets, [rows, 1]), device),
        }
    }
}

#[derive(Module, Debug)]
struct Model {
    up: Linear,
    relu: Relu,
    down: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            up: LinearConfig::new(WIDTH, 16).init(device),
            relu: Relu::new(),
            down: LinearConfig::new(16, 1).init(device),
        }
    }

    fn fit(&self, batch: Batch) -> RegressionOutput {
        let hidden = self.relu.forward(self.up.forward(batch.inputs));
        let output = self.down.forward(hidden);
        let loss = MseLoss::new().forward(output.clone(), batch.targets.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = self.fit(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.fit(batch)
    }
}

/// What a run is asked for beside training.
#[derive(Clone, Copy)]
struct Asked {
    /// The epoch after which it ends.
    epochs: usize,
    /// The epoch whose checkpoint it goes on from.
    from: Option<usize>,
    rate: f64,
    /// Batches whose gradients are added up.
    accumulate: Option<usize>,
    /// Epochs without a better loss after which it ends.
    patience: Option<usize>,
    /// The batch with which it is interrupted.
    interrupt: Option<usize>,
    /// Whether activations are made again in the backward pass.
    recompute: bool,
}

const ASKED: Asked = Asked {
    epochs: 4,
    from: Some(1),
    rate: 1e-2,
    accumulate: None,
    patience: None,
    interrupt: None,
    recompute: false,
};

/// What a run leaves behind.
struct Left {
    numbers: Numbers,
    weights: Vec<TensorData>,
    /// Checkpoints, by name.
    files: BTreeMap<String, Vec<u8>>,
    interrupted: Option<String>,
    /// Batches of training data that were made.
    batches: usize,
}

/// Trains on plain Flex, or on a mesh.
fn train(axes: Option<&str>, directory: &Path, asked: Asked) -> Left {
    let mesh = axes.map(|axes| {
        let mesh = DeviceMesh::builder().axes(&axes.parse().expect("axes"));
        let mesh = match axes {
            ONE_RANK => mesh.regions(Regions::Flex),
            _ => mesh,
        };
        mesh.build().expect("a mesh")
    });
    let device = match &mesh {
        Some(mesh) => mesh.device().autodiff(),
        None => Device::flex().autodiff(),
    };
    let device = match asked.recompute {
        true => device.gradient_checkpointing(),
        false => device,
    };
    // Of some weights that a model may begin with, four epochs make nothing better.
    device.seed(0);
    let model = Model::new(&device);
    let model = match &mesh {
        Some(mesh) => {
            let plan = Plan::new().colwise("up").rowwise("down");
            model.parallelize_with(mesh, &plan).expect("it fits")
        }
        None => model,
    };
    let interrupter = Interrupter::new();
    let made = Arc::new(AtomicUsize::new(0));
    // Without workers a batch is made when it is asked for.
    let loader = |rows: Rows| {
        let loader = DataLoaderBuilder::new(rows).batch_size(BATCH).shuffle(3);
        loader.build(InMemDataset::new((0..SAMPLES).collect()))
    };
    let train = loader(Rows {
        made: made.clone(),
        interrupt: asked.interrupt.map(|at| (at, interrupter.clone())),
    });
    let valid = loader(Rows {
        made: Arc::default(),
        interrupt: None,
    });
    let log = Log::default();
    let mut training = SupervisedTraining::new(directory, train, valid)
        .with_application_logger(None)
        .with_default_checkpointers()
        .with_interrupter(interrupter)
        .metrics((LossMetric::new(),))
        .metric_train_numeric(LearningRateMetric::new())
        .num_epochs(asked.epochs)
        .renderer(Box::new(log.clone()));
    if let Some(epoch) = asked.from {
        training = training.checkpoint(epoch);
    }
    if let Some(batches) = asked.accumulate {
        training = training.grads_accumulation(batches);
    }
    if let Some(n_epochs) = asked.patience {
        training = training.early_stopping(MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs },
        ));
    }
    if asked.recompute {
        training = training.gradient_checkpointing();
    }
    let rates = ExponentialLrSchedulerConfig::new(asked.rate, 0.95);
    let rates = rates.init().expect("a schedule");
    let result = training.launch(Learner::new(model, AdamConfig::new().init(), rates));
    assert!(result.error.is_none(), "{:?}", result.error);
    let model = result.model;
    let mut weights = vec![
        model.up.weight.val().into_data(),
        model.down.weight.val().into_data(),
    ];
    let biases = [model.up.bias, model.down.bias].into_iter().flatten();
    weights.extend(biases.map(|bias| bias.val().into_data()));
    Left {
        numbers: log.numbers(),
        weights,
        files: files(directory),
        interrupted: result
            .interrupted
            .map(|stop| stop.reason.unwrap_or_default()),
        batches: made.load(Ordering::Relaxed),
    }
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoints = std::fs::read_dir(directory.join("checkpoint")).expect("checkpoints");
    checkpoints
        .map(|file| {
            let file = file.expect("a file");
            let name = file.file_name().into_string().expect("text");
            (name, std::fs::read(file.path()).expect("it can be read"))
        })
        .collect()
}

/// A checkpoint's tensors, by name, and what it has beside them: Burn writes states of an optimizer in any order.
type Content = (
    BTreeMap<String, TensorData>,
    BTreeMap<String, Scalar>,
    BTreeMap<String, String>,
);

fn content(file: &[u8]) -> Content {
    let reader = Reader::from_bytes(Bytes::from_bytes_vec(file.to_vec())).expect("a record");
    let (scalars, others) = (reader.scalars().clone(), reader.metadata().clone());
    let tensors = reader.into_tensors().expect("tensors");
    let tensors = tensors.into_iter().map(|tensor| {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().expect("bytes");
        (name, TensorData::from_bytes(bytes, shape, dtype))
    });
    (tensors.collect(), scalars, others)
}

/// The first epoch, on plain Flex: all runs of the tests go on from its checkpoint.
fn first_epoch() -> BTreeMap<String, Vec<u8>> {
    static FIRST: Mutex<Option<BTreeMap<String, Vec<u8>>>> = Mutex::new(None);
    let mut first = FIRST.lock().expect("no panic");
    let make = || {
        let directory = tempfile::tempdir().expect("a directory");
        let asked = Asked {
            epochs: 1,
            from: None,
            ..ASKED
        };
        train(None, directory.path(), asked).files
    };
    first.get_or_insert_with(make).clone()
}

/// Goes on from the first epoch.
fn go_on(axes: Option<&str>, asked: Asked) -> Left {
    let directory = tempfile::tempdir().expect("a directory");
    let to = directory.path().join("checkpoint");
    std::fs::create_dir_all(&to).expect("a directory");
    for (name, bytes) in first_epoch() {
        std::fs::write(to.join(name), bytes).expect("it can be written");
    }
    train(axes, directory.path(), asked)
}

/// The mesh with the bits of plain Flex: there its own operations run.
const ONE_RANK: &str = "fsdp=1";
const MESHES: [&str; 5] = [ONE_RANK, "fsdp=2", "tp=2", "dp=3", "fsdp=2,tp=2"];

/// Runs on every mesh what ran on plain Flex: on one rank all of it is the same, bit by bit.
fn runs_as_on_flex(asked: Asked) -> Left {
    let plain = go_on(None, asked);
    for axes in MESHES {
        let found = go_on(Some(axes), asked);
        let names = |left: &Left| left.files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&plain), "{axes}");
        assert_eq!(found.interrupted, plain.interrupted, "{axes}");
        assert_eq!(found.batches, plain.batches, "{axes}");
        if axes == ONE_RANK {
            assert_eq!(found.numbers, plain.numbers);
            assert_eq!(found.weights, plain.weights);
            for (name, bytes) in &plain.files {
                assert_eq!(content(&found.files[name]), content(bytes), "{name}");
            }
            continue;
        }
        assert_eq!(found.numbers.0.len(), plain.numbers.0.len(), "{axes}");
        for ((name, found), (of_plain, expected)) in found.numbers.0.iter().zip(&plain.numbers.0) {
            assert_eq!(name, of_plain, "{axes}");
            // Some twenty steps of Adam carry on what the sums of a few products were off by.
            assert!(
                (found - expected).abs() < 1e-4,
                "{axes}, {name}: {found} instead of {expected}"
            );
        }
        for (found, expected) in found.weights.iter().zip(&plain.weights) {
            found.assert_approx_eq::<f32>(expected, Tolerance::absolute(1e-3));
        }
    }
    plain
}

#[test]
fn metrics_checkpoints_and_resuming() {
    let plain = runs_as_on_flex(ASKED);
    assert_eq!(plain.batches, 3 * 6);
    assert_eq!(plain.numbers.of("train Loss").len(), 3 * 6);
    assert_eq!(plain.numbers.of("valid Loss").len(), 3 * 6);
    assert_eq!(plain.numbers.of("train Learning Rate").len(), 3 * 6);
    let losses = plain.numbers.of("valid Loss");
    let epoch = |at: usize| losses[6 * at..6 * (at + 1)].iter().sum::<f64>();
    assert!(epoch(2) < epoch(0), "nothing learned: {losses:?}");
    for name in ["model-4.bpk", "optim-4.bpk", "scheduler-4.bpk"] {
        assert!(plain.files.contains_key(name), "{name}");
    }
}

#[test]
fn gradients_of_several_batches_are_added_up() {
    // Six batches: four, and the two that are left.
    let asked = Asked {
        accumulate: Some(4),
        ..ASKED
    };
    let plain = runs_as_on_flex(asked);
    let rates = plain.numbers.of("train Learning Rate");
    let mut steps = rates.clone();
    steps.dedup();
    assert_eq!((rates.len(), steps.len()), (3 * 6, 1 + 3 * 2), "{rates:?}");
}

#[test]
fn early_stopping_ends_after_the_same_epoch() {
    // A step too long: the loss rises.
    let asked = Asked {
        epochs: 20,
        rate: 0.7,
        patience: Some(2),
        ..ASKED
    };
    let plain = runs_as_on_flex(asked);
    assert!(plain.batches < 19 * 6, "{} batches", plain.batches);
    assert_eq!(plain.interrupted, None);
}

#[test]
fn an_interruption_ends_the_epoch_where_it_is() {
    let asked = Asked {
        interrupt: Some(8),
        ..ASKED
    };
    let plain = runs_as_on_flex(asked);
    assert_eq!(plain.interrupted.as_deref(), Some("enough"));
    assert_eq!(plain.batches, 8);
    assert_eq!(plain.numbers.of("train Loss").len(), 8);
    assert!(plain.files.contains_key("model-2.bpk"));
    assert!(!plain.files.contains_key("model-3.bpk"));
}

#[test]
fn gradient_checkpointing_changes_no_bit() {
    let asked = Asked {
        recompute: true,
        ..ASKED
    };
    let recomputed = runs_as_on_flex(asked);
    let plain = go_on(None, ASKED);
    assert_eq!(recomputed.numbers, plain.numbers);
    assert_eq!(recomputed.weights, plain.weights);
}
