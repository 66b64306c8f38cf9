//! Training that goes on from a checkpoint is, bit by bit, training that was not interrupted; on another mesh it starts
//! from the same bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler as _;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::{AutodiffModule, Module, Param, ParamId, Parameter};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, LinearLayout,
};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, MuonConfig, Optimizer,
    RmsPropConfig, SgdConfig,
};
use burn::record::{Recorder, RecorderError};
use burn::tensor::backend::Backend;
use burn::tensor::{
    Bool, DType, Distribution, ElementConversion, FloatDType, Int, Tensor, TensorData, Tolerance,
};
use burn_dist::checkpoint::storage::memory::MemoryStorage;
use burn_dist::checkpoint::{
    Checkpoint, CheckpointError, Checkpointer, Checkpoints, DistRecorder, LoadOptions, Match,
    State, StateError, tools,
};
use burn_dist::optim::{Ema, LossScaler};
use burn_dist::record::Parts as _;
use burn_dist::{DTensor, DeviceMesh, DeviceMeshBuilder, Dist, MeshDevice, ParallelizeWith, Plan};
use tempfile::TempDir;

use crate::transformer::run::{B, builder, weights};
use crate::transformer::worlds::in_processes;
use crate::transformer::{Net, SEQ, VOCAB, sequence_parallel};

const BLOCKS: usize = 4;
const STEPS: usize = 4;
const HALF: usize = 2;
const ROWS: usize = 6;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn plan() -> Plan {
    let plan = sequence_parallel().first("embedding").stages("blocks");
    plan.unit("blocks").last("norm").last("output")
}

fn tokens(step: usize, device: &MeshDevice) -> Tensor<B, 2, Int> {
    let token = |i: usize| ((i * 7 + step * 13 + 3) % VOCAB) as i32;
    let tokens: Vec<i32> = (0..ROWS * SEQ).map(token).collect();
    Tensor::from_data(TensorData::new(tokens, [ROWS, SEQ]), device)
}

/// A training run with checkpoints.
struct Run<O> {
    device: MeshDevice,
    net: Net<B>,
    optimizer: O,
    scheduler: ComposedLrScheduler,
    checkpoints: Checkpointer<B>,
    step: usize,
    losses: Vec<f32>,
}

impl<O: Optimizer<Net<B>, B>> Run<O> {
    /// Goes on from the latest checkpoint, if there is one.
    fn start(mesh: DeviceMeshBuilder, root: &Path, optimizer: O) -> Self {
        let mesh = mesh.build().expect("a mesh");
        let device = mesh.device();
        let net = Net::<B>::new(BLOCKS, &device);
        let scheduler = ComposedLrSchedulerConfig::new()
            .cosine(CosineAnnealingLrSchedulerConfig::new(1e-2, 7))
            .exponential(ExponentialLrSchedulerConfig::new(1.0, 0.97));
        let mut run = Self {
            net: net.parallelize_with(&mesh, &plan()).expect("a plan"),
            optimizer,
            scheduler: scheduler.init().expect("a schedule"),
            checkpoints: Checkpointer::at(root, &device).expect("a directory"),
            step: 0,
            losses: Vec::new(),
            device,
        };
        if let Some(saved) = run.checkpoints.latest().expect("a checkpoint") {
            run.net = saved.module("model", run.net).expect("the model");
            let optimizer = saved.optimizer("optimizer", run.optimizer, &run.net);
            run.optimizer = optimizer.expect("its optimizer");
            run.scheduler = saved
                .scheduler("scheduler", run.scheduler)
                .expect("its scheduler");
            run.step = saved.value("step").expect("a step");
            assert_eq!(run.step as u64, saved.step());
        }
        run
    }

    fn train(mut self, steps: usize) -> Self {
        for _ in 0..steps {
            let input = tokens(self.step, &self.device);
            let logits = self.net.forward(input).reshape([ROWS * SEQ, VOCAB]);
            let targets = tokens(self.step + 1, &self.device).reshape([ROWS * SEQ]);
            let loss = CrossEntropyLossConfig::new().init(&self.device);
            let loss = loss.forward(logits, targets);
            let gradients = GradientsParams::from_grads(loss.backward(), &self.net);
            self.net = self
                .optimizer
                .step(self.scheduler.step(), self.net, gradients);
            self.losses.push(loss.into_scalar().elem());
            self.step += 1;
        }
        self
    }

    fn state(&self) -> State<B> {
        State::new()
            .module("model", &self.net)
            .optimizer("optimizer", &self.optimizer, &self.net)
            .scheduler("scheduler", &self.scheduler)
            .value("step", &self.step)
    }

    fn save(mut self) -> Self {
        let state = self.state();
        self.checkpoints
            .save(self.step as u64, state)
            .expect("saved");
        self
    }
}

/// Trains two steps on a mesh, and puts the checkpoint of them in both directories.
fn begin<O: Optimizer<Net<B>, B>>(axes: &str, optimizer: O, roots: [&Path; 2]) {
    Run::start(builder(axes), roots[0], optimizer)
        .train(HALF)
        .save();
    copy(&latest(roots[0]), &roots[1].join("step-0000000002"));
}

fn latest(root: &Path) -> PathBuf {
    let latest = Checkpoints::at(root).open_latest().expect("a checkpoint");
    latest.expect("one").1.path().to_path_buf()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for file in std::fs::read_dir(from).expect("a directory") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("room");
    }
}

/// Asserts that the last checkpoints in two directories are the same, bit by bit.
fn assert_equal(one: &Path, other: &Path, what: &str) {
    let open = |root: &Path| Checkpoints::at(root).open_latest().unwrap().expect("one").1;
    let (one, other) = (open(one), open(other));
    let found = tools::diff(&one, &other).expect("both are readable");
    assert_eq!(found.changed, [], "{what}");
    assert_eq!(
        found.num_equal,
        one.manifest().tensors.len(),
        "{what}: {found:?}"
    );
    for part in ["records", "values"] {
        let of =
            |checkpoint: &Checkpoint| checkpoint.manifest().metadata["burn-dist"][part].clone();
        assert_eq!(of(&one), of(&other), "{what}");
    }
}

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < 2e-5 * expected.abs(),
            "{what}: {found} {expected}"
        );
    }
}

#[test]
fn resumed_is_uninterrupted_on_every_mesh() {
    for axes in [
        "",
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "tp=2",
        "fsdp=2,tp=2",
        "dp=2,fsdp=2",
        "pp=2",
        "pp=2,fsdp=2",
        "pp=4",
    ] {
        let (whole, halves) = (directory(), directory());
        let adam = || AdamWConfig::new().init::<B, Net<B>>();
        // Models start at random: both go on from one.
        begin(axes, adam(), [whole.path(), halves.path()]);
        let start = |root| Run::start(builder(axes), root, adam());
        let expected = start(whole.path()).train(STEPS).save();
        let first = start(halves.path()).train(HALF).save();
        let rest = start(halves.path()).train(STEPS - HALF).save();
        assert_eq!(
            [first.losses, rest.losses].concat(),
            expected.losses,
            "{axes}"
        );
        assert_equal(halves.path(), whole.path(), axes);
    }
}

#[test]
fn another_mesh_goes_on_from_the_same_bits() {
    let adam = || AdamWConfig::new().init::<B, Net<B>>();
    let (whole, first) = (directory(), directory());
    begin("fsdp=4", adam(), [whole.path(), first.path()]);
    let expected = Run::start(builder("fsdp=4"), whole.path(), adam()).train(HALF);
    for axes in [
        "",
        "fsdp=2,tp=2",
        "fsdp=3",
        "pp=2",
        "pp=4",
        "tp=2,dp=3",
        "pp=2,tp=2",
        "fsdp=2",
    ] {
        let here = directory();
        let mut run = Run::start(builder(axes), first.path(), adam());
        // Loaded and saved again: the same elements, in other pieces.
        run.checkpoints = Checkpointer::at(here.path(), &run.device).expect("a directory");
        let run = run.save();
        assert_equal(here.path(), first.path(), axes);
        close(&run.train(HALF).losses, &expected.losses, axes);
    }
}

#[test]
fn every_optimizer_is_resumed() {
    fn check<O: Optimizer<Net<B>, B>>(name: &str, optimizer: impl Fn() -> O) {
        for axes in ["fsdp=2,tp=2", "pp=2"] {
            let (whole, halves) = (directory(), directory());
            begin(axes, optimizer(), [whole.path(), halves.path()]);
            let start = |root| Run::start(builder(axes), root, optimizer());
            let expected = start(whole.path()).train(2 * HALF).save();
            let first = start(halves.path()).train(HALF).save();
            let rest = start(halves.path()).train(HALF).save();
            let what = format!("{name} on {axes}");
            assert_eq!(
                [first.losses, rest.losses].concat(),
                expected.losses,
                "{what}"
            );
            assert_equal(halves.path(), whole.path(), &what);
        }
    }
    check("SGD", || SgdConfig::new().init());
    check("SGD with momentum", || {
        let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        config
            .with_weight_decay(Some(WeightDecayConfig::new(1e-2)))
            .init()
    });
    check("Adam", || AdamConfig::new().init());
    check("AMSGrad", || AdamWConfig::new().with_amsgrad(true).init());
    check("Adan", || AdanConfig::new().init());
    check("AdaGrad", || AdaGradConfig::new().init());
    check("RMSProp", || {
        RmsPropConfig::new().with_centered(true).init()
    });
}

/// It updates matrices alone.
#[test]
fn muon_is_resumed() {
    let mesh = builder("fsdp=2").build().unwrap();
    let device = mesh.device();
    let root = directory();
    let config = LinearConfig::new(4, 6).with_bias(false);
    let plan = Plan::new();
    let step = |linear: Linear<B>,
                optimizer: &mut dyn FnMut(Linear<B>, GradientsParams) -> Linear<B>| {
        let loss = linear
            .forward(Tensor::<B, 2>::ones([2, 4], &device))
            .powi_scalar(2)
            .mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &linear);
        optimizer(linear, gradients)
    };
    let mut linear = config
        .init::<B>(&device)
        .parallelize_with(&mesh, &plan)
        .unwrap();
    let mut muon = MuonConfig::new().init::<B, Linear<B>>();
    linear = step(linear, &mut |linear, gradients| {
        muon.step(0.1, linear, gradients)
    });
    let mut checkpoints = Checkpointer::<B>::at(root.path(), &device).unwrap();
    let state = State::new()
        .module("model", &linear)
        .optimizer("muon", &muon, &linear);
    checkpoints.save(1, state).unwrap();
    let expected = step(linear, &mut |linear, gradients| {
        muon.step(0.1, linear, gradients)
    });

    let saved = checkpoints.open(1).unwrap();
    let fresh = config
        .init::<B>(&device)
        .parallelize_with(&mesh, &plan)
        .unwrap();
    let linear = saved.module("model", fresh).unwrap();
    let mut muon = saved
        .optimizer("muon", MuonConfig::new().init(), &linear)
        .unwrap();
    let found = step(linear, &mut |linear, gradients| {
        muon.step(0.1, linear, gradients)
    });
    assert!(found.weight.val().into_data().bytes == expected.weight.val().into_data().bytes);
}

/// Parameters of every kind, with all that a module may do to them.
#[derive(Module, Debug)]
struct Zoo<B: Backend> {
    /// Kept as `[out, in]`, and transposed in records.
    columns: Linear<B>,
    /// Has running statistics, which no gradient changes.
    norm: BatchNorm<B>,
    dropout: Dropout,
    rows: Linear<B>,
    counts: Param<Tensor<B, 1, Int>>,
    mask: Param<Tensor<B, 2, Bool>>,
}

fn fixed<T: Parameter>(value: T) -> Param<T> {
    Param::initialized(ParamId::new(), value)
}

impl<B: Backend> Zoo<B> {
    fn new(device: &B::Device) -> Self {
        let columns = LinearConfig::new(6, 10).with_layout(LinearLayout::Col);
        let rows: Linear<B> = LinearConfig::new(10, 3).init(device);
        Self {
            columns: columns.init(device),
            norm: BatchNormConfig::new(10).init(device),
            dropout: DropoutConfig::new(0.5).init(),
            rows,
            counts: fixed(Tensor::from_data([1, 2, 3], device)),
            mask: fixed(Tensor::from_data([[true, false], [false, true]], device)),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let x = self.norm.forward(self.columns.forward(x));
        self.rows.forward(self.dropout.forward(x)).mean()
    }
}

fn zoo(axes: &str) -> (DeviceMesh, Zoo<B>) {
    let mesh = builder(axes).build().expect("a mesh");
    let plan = Plan::new().rowwise("rows");
    let zoo = Zoo::new(&mesh.device()).parallelize_with(&mesh, &plan);
    (mesh, zoo.expect("a plan"))
}

/// A step with a batch and a mask that are drawn.
fn draw(
    zoo: Zoo<B>,
    optimizer: &mut impl Optimizer<Zoo<B>, B>,
    device: &MeshDevice,
) -> (Zoo<B>, f32) {
    let x = Tensor::random([8, 6], Distribution::Normal(0.0, 1.0), device);
    let loss = zoo.forward(x);
    let gradients = GradientsParams::from_grads(loss.backward(), &zoo);
    let zoo = optimizer.step(0.1, zoo, gradients);
    (zoo, loss.into_scalar().elem())
}

#[test]
fn every_kind_of_parameter_and_the_random_numbers_go_on() {
    let root = directory();
    let (mesh, mut model) = zoo("fsdp=2");
    let device = mesh.device();
    // Burn 0.21 trains a weight kept as `[out, in]` only once it was loaded: before, it is no leaf of the graph.
    model = model.clone().load_record(model.into_record());
    B::seed(&device, 7);
    let mut optimizer = AdamConfig::new().init();
    (model, _) = draw(model, &mut optimizer, &device);
    model.counts = fixed(Tensor::from_data([7, 8, 9], &device));
    model.mask = fixed(Tensor::from_data([[true, true], [false, false]], &device));
    let mut ema = Ema::new(&model, 0.5);
    (model, _) = draw(model, &mut optimizer, &device);
    ema.update(&model);
    let mut scaler = LossScaler::new(1024.0);
    let infinite = model.rows.weight.val().sum() * f32::INFINITY;
    let infinite = GradientsParams::from_grads(infinite.backward(), &model);
    assert!(scaler.unscale(&model, infinite).is_none());
    let state = State::new()
        .module("model", &model)
        .optimizer("optimizer", &optimizer, &model)
        .value("scaler", &scaler);
    let mut checkpoints = Checkpointer::<B>::at(root.path(), &device).unwrap();
    checkpoints.save(1, state).unwrap();
    let averages = root.path().join("averages");
    let mut of_average = Checkpointer::<Dist<Flex>>::at(&averages, &device).unwrap();
    of_average
        .save(1, State::new().module("average", ema.model()))
        .unwrap();

    let mut expected = Vec::new();
    for _ in 0..3 {
        let (next, loss) = draw(model, &mut optimizer, &device);
        (model, _) = (next, expected.push(loss));
    }
    for axes in ["fsdp=2", "tp=2,fsdp=2", ""] {
        let (mesh, model) = zoo(axes);
        let device = mesh.device();
        let saved = Checkpointer::<B>::at(root.path(), &device)
            .unwrap()
            .latest()
            .unwrap()
            .unwrap();
        let mut model = saved.module("model", model).unwrap();
        let mut optimizer = saved
            .optimizer("optimizer", AdamConfig::new().init(), &model)
            .unwrap();
        assert_eq!(saved.value::<LossScaler>("scaler").unwrap(), scaler);
        let counts: Vec<i64> = model.counts.val().into_data().iter::<i64>().collect();
        assert_eq!(counts, [7, 8, 9]);
        let mask: Vec<bool> = model.mask.val().into_data().iter::<bool>().collect();
        assert_eq!(mask, [true, true, false, false]);
        let of_average = Checkpointer::<Dist<Flex>>::at(&averages, &device).unwrap();
        let average = of_average.latest().unwrap().unwrap();
        let average = average.module("average", model.valid()).unwrap();
        let bits = |weight: Tensor<Dist<Flex>, 2>| weight.into_data().bytes;
        assert!(bits(average.rows.weight.val()) == bits(ema.model().rows.weight.val()));
        saved.restore_random().unwrap();
        let mut losses = Vec::new();
        for _ in 0..3 {
            let (next, loss) = draw(model, &mut optimizer, &device);
            (model, _) = (next, losses.push(loss));
        }
        match axes {
            "fsdp=2" => assert_eq!(losses, expected),
            _ => close(&losses, &expected, axes),
        }
    }
}

#[test]
fn a_save_in_the_background_has_the_state_at_its_call() {
    let adam = || AdamWConfig::new().init::<B, Net<B>>();
    for axes in ["fsdp=2,tp=2", "pp=2"] {
        let (here, there) = (directory(), directory());
        let mut run = Run::start(builder(axes), here.path(), adam()).train(HALF);
        let state = run.state();
        let saving = run.checkpoints.save_in_background(2, state).unwrap();
        run.checkpoints = Checkpointer::at(there.path(), &run.device).unwrap();
        let mut run = run.save().train(HALF);
        saving.wait().unwrap();
        assert_equal(here.path(), there.path(), axes);
        // The next one waits for it.
        let state = run.state();
        let first = run.checkpoints.save_in_background(4, state).unwrap();
        let state = run.state();
        let second = run.checkpoints.save_in_background(5, state).unwrap();
        second.wait().unwrap();
        assert!(first.has_ended());
        first.wait().unwrap();
        assert_eq!(run.checkpoints.checkpoints().steps().unwrap(), [2, 4, 5]);
    }
}

#[test]
fn processes_save_together_and_load_their_own() {
    let adam = || AdamWConfig::new().init::<B, Net<B>>();
    for (axes, other) in [
        ("fsdp=2", "fsdp=4"),
        ("pp=2,fsdp=2", "tp=2,dp=2"),
        ("dp=2,tp=2", "pp=2"),
    ] {
        let (one, several) = (directory(), directory());
        begin(axes, adam(), [one.path(), several.path()]);
        let expected = Run::start(builder(axes), one.path(), adam())
            .train(HALF)
            .save();
        let runs = in_processes(2, |world| {
            let mut run =
                Run::start(builder(axes).world(world), several.path(), adam()).train(HALF);
            let state = run.state();
            let saving = run.checkpoints.save_in_background(4, state).unwrap();
            saving.wait().unwrap();
            run.losses
        });
        assert_eq!(runs, [expected.losses.clone(), expected.losses]);
        assert_equal(several.path(), one.path(), axes);
        let found = in_processes(2, |world| {
            let run = Run::start(builder(other).world(world), several.path(), adam()).train(HALF);
            run.losses
        });
        let expected = Run::start(builder(axes), one.path(), adam())
            .train(HALF)
            .losses;
        found
            .iter()
            .for_each(|found| close(found, &expected, other));
    }
}

#[test]
fn what_one_process_cannot_write_none_has_saved() {
    let results = in_processes(2, |world| {
        let storage = MemoryStorage::new();
        let process = world.process();
        let mesh = builder("fsdp=2").world(world).build().unwrap();
        let net = Net::<B>::new(BLOCKS, &mesh.device());
        let files = Checkpoints::on(Arc::new(storage.clone()), "/run");
        let mut checkpoints = Checkpointer::<B>::with(files, &mesh.device()).unwrap();
        if process == 1 {
            storage.fill_at(Some(100));
        }
        let saved = checkpoints.save(1, State::new().module("model", &net));
        (
            saved.unwrap_err().to_string(),
            checkpoints.checkpoints().steps().unwrap(),
        )
    });
    let [(first, first_steps), (second, second_steps)] = &results[..] else {
        panic!("two processes");
    };
    assert!(
        first.starts_with("process 1 could not write its part of the checkpoint: "),
        "{first}"
    );
    assert!(
        second.starts_with("cannot write the file /run/.tmp-step-0000000001-"),
        "{second}"
    );
    assert!(first_steps.is_empty() && second_steps.is_empty());
}

#[test]
fn what_does_not_fit_is_named() {
    let root = directory();
    let (mesh, model) = zoo("fsdp=2");
    let device = mesh.device();
    let mut optimizer = AdamConfig::new().init();
    let (model, _) = draw(model, &mut optimizer, &device);
    let mut checkpoints = Checkpointer::<B>::at(root.path(), &device).unwrap();
    assert!(checkpoints.latest().unwrap().is_none());
    let state = || State::new().module("model", &model).value("step", &3);
    checkpoints
        .save(3, state().optimizer("optimizer", &optimizer, &model))
        .unwrap();
    let text = |error: StateError| error.to_string();

    // Saving.
    let twice = state().value("step", &4);
    assert_eq!(
        text(checkpoints.save(4, twice).unwrap_err()),
        "two things are called `step`: give each a name of its own"
    );
    let again = text(checkpoints.save(3, state()).unwrap_err());
    assert!(again.starts_with("there is a checkpoint at "), "{again}");
    let same = State::new()
        .module("model", &model)
        .module("model.rows", &model.rows);
    assert_eq!(
        text(checkpoints.save(4, same).unwrap_err()),
        "the tensor model.rows.bias is there twice"
    );
    let dry = DeviceMesh::builder()
        .axis("fsdp", 2)
        .dry_run()
        .build()
        .unwrap();
    let refused = Checkpointer::<B>::at(root.path(), &dry.device())
        .err()
        .unwrap();
    assert_eq!(
        text(refused),
        "mesh fsdp=2 is a dry run: it has no values to save and takes none"
    );

    // Loading.
    let saved = checkpoints.latest().unwrap().unwrap();
    assert_eq!(
        text(saved.module("models", model.clone()).unwrap_err()),
        "the checkpoint has no module `models`; it has `model`"
    );
    assert_eq!(
        text(saved.value::<String>("step").unwrap_err()),
        "the checkpoint's `step` does not fit what it is loaded into: invalid type: integer `3`, expected a string"
    );
    let other = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init::<B, Zoo<B>>();
    let error = text(saved.optimizer("optimizer", other, &model).err().unwrap());
    assert!(
        error.contains("does not fit what it is loaded into"),
        "{error}"
    );
    let smaller: Linear<B> = LinearConfig::new(10, 3).init(&device);
    let error = saved
        .optimizer("optimizer", AdamConfig::new().init(), &smaller)
        .err()
        .unwrap();
    assert!(
        matches!(&error, StateError::Parameters { paths, .. } if paths.len() == 5),
        "{error}"
    );
    let linear: Linear<B> = LinearConfig::new(11, 3).init(&device);
    let error = text(
        saved
            .module(
                "model",
                Holder {
                    rows: linear,
                    extra: smaller,
                },
            )
            .err()
            .unwrap(),
    );
    assert!(error.contains("missing     model.extra.weight"), "{error}");
    assert!(error.contains("unexpected  model.norm.gamma"), "{error}");
    assert!(
        error.contains("model.rows.weight") && error.contains("[11, 3]"),
        "{error}"
    );

    // Some of it.
    let smaller: Linear<B> = LinearConfig::new(10, 3).init(&device);
    let rows: Linear<B> = LinearConfig::new(10, 3).init(&device);
    let lenient = LoadOptions {
        matching: Match::Lenient,
        ..LoadOptions::default()
    };
    let saved = saved.options(lenient);
    let before = smaller.weight.val().into_data();
    let (holder, report) = saved
        .module_reported(
            "model",
            Holder {
                rows,
                extra: smaller,
            },
        )
        .unwrap();
    assert_eq!(report.missing, ["model.extra.weight", "model.extra.bias"]);
    holder
        .extra
        .weight
        .val()
        .into_data()
        .assert_eq(&before, true);
    holder
        .rows
        .weight
        .val()
        .into_data()
        .assert_eq(&model.rows.weight.val().into_data(), true);
}

/// Another model, with a part of the first.
#[derive(Module, Debug)]
struct Holder<B: Backend> {
    rows: Linear<B>,
    extra: Linear<B>,
}

#[test]
fn another_type_is_converted_where_it_is_asked_for() {
    let root = directory();
    let mesh = builder("fsdp=2").build().unwrap();
    let device = mesh.device();
    let linear: Linear<B> = LinearConfig::new(10, 3).init(&device);
    // A clone of what has no value yet would get another one.
    drop(linear.weight.val());
    let halves = Linear {
        weight: linear
            .weight
            .clone()
            .map(|weight| weight.cast(FloatDType::BF16)),
        bias: None,
    };
    let mut checkpoints = Checkpointer::<B>::at(root.path(), &device).unwrap();
    checkpoints
        .save(1, State::new().module("model", &halves))
        .unwrap();
    let saved = checkpoints.open(1).unwrap();
    let fresh = || LinearConfig::new(10, 3).with_bias(false).init::<B>(&device);
    let error = saved.module("model", fresh()).unwrap_err();
    assert!(
        matches!(error, StateError::Checkpoint(CheckpointError::Keys(_))),
        "{error}"
    );
    let convert = LoadOptions {
        convert: true,
        ..LoadOptions::default()
    };
    let loaded = saved.options(convert).module("model", fresh()).unwrap();
    let expected = linear.weight.val().into_data().convert_dtype(DType::BF16);
    loaded
        .weight
        .val()
        .into_data()
        .assert_eq(&expected.convert_dtype(DType::F32), true);
}

#[test]
fn a_load_draws_and_moves_nothing() {
    let root = directory();
    let mesh = builder("fsdp=2,tp=2").build().unwrap();
    let net = Net::<B>::new(BLOCKS, &mesh.device())
        .parallelize_with(&mesh, &plan())
        .unwrap();
    let mut checkpoints = Checkpointer::<B>::at(root.path(), &mesh.device()).unwrap();
    checkpoints
        .save(1, State::new().module("model", &net))
        .unwrap();

    let mesh = builder("tp=2,fsdp=3").build().unwrap();
    let device = mesh.device();
    let fresh = Net::<B>::new(BLOCKS, &device)
        .parallelize_with(&mesh, &plan())
        .unwrap();
    let checkpoints = Checkpointer::<B>::at(root.path(), &device).unwrap();
    let saved = checkpoints.latest().unwrap().unwrap();
    let (loaded, explanation) = burn_dist::explain::<B, _>(&device, || {
        let loaded = saved.module("model", fresh).unwrap();
        B::sync(&device).unwrap();
        loaded
    });
    let text = explanation.to_string();
    assert!(
        !text.contains("gather") && !text.contains("all-to-all") && !text.contains("random"),
        "{text}"
    );
    assert_eq!(B::random_state(&device).1, 0, "random numbers were drawn");
    for (found, expected) in weights(&loaded).iter().zip(weights(&net)) {
        assert!(found.bytes == expected.bytes);
    }
}

#[test]
fn a_recorder_leaves_tensors_on_the_ranks() {
    let root = directory();
    let path = |name: &str| root.path().join(name);
    let (mesh, mut model) = zoo("fsdp=2");
    let device = mesh.device();
    let mut optimizer = AdamConfig::new().init();
    (model, _) = draw(model, &mut optimizer, &device);
    let record = Recorder::<B>::record(&DistRecorder, model.clone().into_record(), path("model-1"));
    record.unwrap();
    let record = Recorder::<B>::record(&DistRecorder, optimizer.to_record(), path("optim-1"));
    record.unwrap();
    let scheduler = ExponentialLrSchedulerConfig::new(0.1, 0.9).init().unwrap();
    let record = scheduler.to_record::<B>();
    Recorder::<B>::record(&DistRecorder, record, path("scheduler-1")).unwrap();
    assert!(path("scheduler-1.dist").exists() && !path("scheduler-1.tensors").exists());

    // Keys are paths, of the optimizer's state too.
    let keys = |name: &str| -> Vec<String> {
        let (_, checkpoint) = Checkpoints::at(path(name)).open_latest().unwrap().unwrap();
        let tensors = checkpoint.manifest().tensors.iter();
        tensors.map(|tensor| tensor.key.clone()).collect()
    };
    assert!(keys("model-1.tensors").contains(&"record.rows.weight".to_string()));
    let state = keys("optim-1.tensors");
    assert!(
        state.contains(&"record.rows.weight.momentum.moment_1".to_string()),
        "{state:?}"
    );

    let (mesh, other) = zoo("tp=2,fsdp=2");
    let there = mesh.device();
    let other = other
        .load_file(path("model-1"), &DistRecorder, &there)
        .unwrap();
    assert_eq!(
        other.rows.weight.val().layout_text().unwrap(),
        "[{tp, fsdp}, -]"
    );
    for (found, expected) in weights(&other).iter().zip(weights(&model)) {
        assert!(found.bytes == expected.bytes);
    }
    let record = Recorder::<B>::load(&DistRecorder, path("optim-1"), &there).unwrap();
    let mut resumed = AdamConfig::new().init::<B, Zoo<B>>().load_record(record);
    let step =
        |zoo: Zoo<B>, optimizer: &mut dyn FnMut(Zoo<B>, GradientsParams) -> Zoo<B>, device| {
            let loss = zoo
                .rows
                .forward(Tensor::<B, 2>::ones([4, 10], device))
                .sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &zoo);
            optimizer(zoo, gradients)
        };
    let found = step(
        other,
        &mut |zoo, gradients| resumed.step(0.1, zoo, gradients),
        &there,
    );
    let expected = step(
        model,
        &mut |zoo, gradients| optimizer.step(0.1, zoo, gradients),
        &device,
    );
    let tolerance = Tolerance::<f32>::default();
    let expected = expected.rows.weight.val().into_data();
    found
        .rows
        .weight
        .val()
        .into_data()
        .assert_approx_eq(&expected, tolerance);

    // A record that was removed takes its tensors along; one that is there is replaced.
    std::fs::remove_file(path("model-1.dist")).unwrap();
    found
        .clone()
        .save_file(path("model-3"), &DistRecorder)
        .unwrap();
    assert!(!path("model-1.tensors").exists() && path("optim-1.tensors").exists());
    found
        .clone()
        .save_file(path("model-3"), &DistRecorder)
        .unwrap();
    assert_eq!(
        Checkpoints::at(path("model-3.tensors")).steps().unwrap(),
        [1]
    );

    // What is not there, and what does not fit.
    let missing =
        Recorder::<B>::load::<<Zoo<B> as Module<B>>::Record>(&DistRecorder, path("no"), &there);
    assert!(matches!(missing, Err(RecorderError::FileNotFound(_))));
    let wrong = Recorder::<B>::load::<<Linear<B> as Module<B>>::Record>(
        &DistRecorder,
        path("model-3"),
        &there,
    );
    assert!(
        wrong
            .err()
            .unwrap()
            .to_string()
            .contains("does not fit what it is loaded into")
    );
    let several = in_processes(2, |world| {
        let mesh = builder("fsdp=2").world(world).build().unwrap();
        let linear: Linear<B> = LinearConfig::new(4, 2).init(&mesh.device());
        let saved = linear.save_file(path("several"), &DistRecorder);
        saved.unwrap_err().to_string()
    });
    assert!(several[0].contains("is for one process") && several[1].contains("is for one process"));
}
