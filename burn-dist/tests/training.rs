//! An ordinary program on a mesh: what it computes is what one device computes.

use std::ops::Range;
use std::path::Path;

use burn::module::{Lora, Module, Param, ParamGroup};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{
    AdafactorConfig, AdamConfig, GradientsParams, LambConfig, LionConfig, ModuleOptimizer,
    SgdConfig,
};
use burn::tensor::{Device, DeviceConfig, FloatDType, Tensor, TensorData};
use burn_dist::checkpoint::{Checkpointer, Checkpoints, State, tools};
use burn_dist::parallel::pipeline;
use burn_dist::{DTensor, DeviceMesh, OnMesh, Parallelize};

#[derive(Module, Debug, Parallelize)]
struct Mlp {
    #[parallel(colwise)]
    up: Linear,
    relu: Relu,
    #[parallel(rowwise)]
    down: Linear,
}

/// The same weights on every device.
fn mlp(device: &Device) -> Mlp {
    let config = |input, output| LinearConfig::new(input, output).init(device);
    let mut mlp = Mlp {
        up: config(8, 16),
        relu: Relu::new(),
        down: config(16, 8),
    };
    let fill = |shape: [usize; 2]| {
        let values = (0..shape[0] * shape[1]).map(|i| ((i * 29 % 31) as f32 - 15.0) / 60.0);
        Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), shape), device)
    };
    mlp.up.weight = Param::from_tensor(fill([8, 16]));
    mlp.down.weight = Param::from_tensor(fill([16, 8]));
    mlp.up.bias = Some(Param::from_tensor(Tensor::zeros([16], device)));
    mlp.down.bias = Some(Param::from_tensor(Tensor::zeros([8], device)));
    mlp
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(self.relu.forward(self.up.forward(x)))
    }
}

fn batch(step: usize, device: &Device) -> Tensor<2> {
    let values = (0..32).map(|i| ((i * 37 + step * 101) % 97) as f32 / 97.0);
    Tensor::from_data(
        TensorData::new(values.collect::<Vec<f32>>(), [4, 8]),
        device,
    )
}

/// The losses of some steps, and the parameters after them.
fn train(device: &Device, model: Mlp) -> (Vec<f32>, Vec<TensorData>) {
    train_by(AdamConfig::new().init(), device, model)
}

fn train_by(
    mut optimizer: ModuleOptimizer,
    device: &Device,
    mut model: Mlp,
) -> (Vec<f32>, Vec<TensorData>) {
    let losses = (0..10).map(|step| {
        let x = batch(step, device);
        let loss = (model.forward(x.clone()) - x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model.clone(), gradients);
        loss.into_scalar::<f32>()
    });
    let losses = losses.collect();
    let parameters = [model.up.weight.val(), model.down.weight.val()];
    (losses, parameters.map(Tensor::into_data).into())
}

#[test]
fn one_rank_gives_the_bits_of_one_device() {
    let plain = Device::flex().autodiff();
    let mesh = DeviceMesh::parse("fsdp=1").expect("a mesh");
    let device = mesh.device().autodiff();
    let model = mlp(&device).parallelize(&mesh).expect("it fits");
    assert_eq!(train(&device, model), train(&plain, mlp(&plain)));
}

#[test]
fn meshes_compute_what_one_device_computes() {
    let plain = Device::flex().autodiff();
    let (expected, parameters) = train(&plain, mlp(&plain));
    for text in ["dp=2", "fsdp=2", "tp=2", "fsdp=2,tp=2", "dp=2,fsdp=2"] {
        for device in [
            |mesh: &DeviceMesh| mesh.device().autodiff(),
            |mesh: &DeviceMesh| mesh.device().autodiff().gradient_checkpointing(),
        ] {
            let mesh = DeviceMesh::parse(text).expect("a mesh");
            let device = device(&mesh);
            let model = mlp(&device).parallelize(&mesh).expect("it fits");
            let (losses, found) = train(&device, model);
            for (found, expected) in losses.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{text}: {found} instead of {expected}"
                );
            }
            for (found, expected) in found.iter().zip(&parameters) {
                found.assert_approx_eq::<f32>(expected, burn::tensor::Tolerance::absolute(1e-4));
            }
        }
    }
}

#[test]
fn parameters_lie_as_the_attributes_say() {
    let mesh = DeviceMesh::parse("fsdp=2,tp=2").expect("a mesh");
    let device = mesh.device().autodiff();
    let model = mlp(&device).parallelize(&mesh).expect("it fits");
    let (_, _) = train(&device, model.clone());
    assert_eq!(
        model.up.weight.val().layout_text().unwrap(),
        "[{fsdp*}, {tp}]"
    );
    assert!(device.report().ops > 0);
}

#[test]
fn a_step_in_microbatches_is_accumulation() {
    let mesh = DeviceMesh::parse("dp=2").expect("a mesh");
    let device = mesh.device().autodiff();
    let model = mlp(&device).parallelize(&mesh).expect("it fits");
    let loss = |model: &Mlp, x: Tensor<2>| (model.forward(x.clone()) - x).powi_scalar(2).mean();
    let whole = loss(&model, batch(0, &device)).into_scalar::<f32>();
    let (sum, gradients) =
        pipeline::forward_backward(&model, batch(0, &device), 2, loss).expect("two rows each");
    assert!((sum.into_scalar::<f32>() - whole).abs() < 1e-6);
    assert_eq!(gradients.len(), 4);
}

/// Optimizers that Burn has since 0.22, and groups of parameters with one each.
#[test]
fn every_optimizer_computes_what_it_does_on_one_device() {
    type Make = fn() -> ModuleOptimizer;
    let optimizers: [(&str, Make); 4] = [
        ("Adafactor", || AdafactorConfig::new().init()),
        ("Lamb", || LambConfig::new().init()),
        ("Lion", || LionConfig::new().init()),
        ("groups", || {
            let biases = ParamGroup::from_predicate("bias");
            let sgd = SgdConfig::new().build();
            AdamConfig::new().init().with_group(biases, sgd, None)
        }),
    ];
    let plain = Device::flex().autodiff();
    for (name, optimizer) in optimizers {
        let (expected, parameters) = train_by(optimizer(), &plain, mlp(&plain));
        for text in ["fsdp=1", "fsdp=2", "tp=2", "dp=2,fsdp=2", "fsdp=2,tp=2"] {
            let mesh = DeviceMesh::parse(text).expect("a mesh");
            let device = mesh.device().autodiff();
            let model = mlp(&device).parallelize(&mesh).expect("it fits");
            let (losses, found) = train_by(optimizer(), &device, model);
            if text == "fsdp=1" {
                assert_eq!((&losses, &found), (&expected, &parameters), "{name}");
            }
            for (found, expected) in losses.iter().zip(&expected) {
                let distance = (found - expected).abs();
                assert!(
                    distance < 1e-4,
                    "{name}, {text}: {found} instead of {expected}"
                );
            }
            // A step of Lion is a sign: where a gradient is about zero, weights differ by a few steps.
            if name != "Lion" {
                for (found, expected) in found.iter().zip(&parameters) {
                    found
                        .assert_approx_eq::<f32>(expected, burn::tensor::Tolerance::absolute(1e-3));
                }
            }
        }
    }
}

/// Optimizers, with how many tensors each of them keeps for a vector and for a matrix.
type Kept = (&'static str, fn() -> ModuleOptimizer, [usize; 2]);
const KEPT: [Kept; 4] = [
    ("Adam", || AdamConfig::new().init(), [2, 2]),
    ("Adafactor", || AdafactorConfig::new().init(), [1, 2]),
    ("Lamb", || LambConfig::new().init(), [2, 2]),
    ("Lion", || LionConfig::new().init(), [1, 1]),
];

/// A run that can be saved and gone on with.
struct Run {
    device: Device,
    model: Mlp,
    optimizer: ModuleOptimizer,
}

impl Run {
    fn new(mesh: &str, dtype: FloatDType, optimizer: ModuleOptimizer) -> Self {
        let mesh = DeviceMesh::parse(mesh).expect("a mesh");
        let mut device = mesh.device();
        let types = DeviceConfig::default().float_dtype(dtype);
        device.configure(types).expect("nothing is on it yet");
        let device = device.autodiff();
        Self {
            model: mlp(&device).parallelize(&mesh).expect("it fits"),
            device,
            optimizer,
        }
    }

    fn train(mut self, steps: Range<usize>) -> Self {
        for step in steps {
            let x = batch(step, &self.device);
            let loss = (self.model.forward(x.clone()) - x).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
            self.model = self.optimizer.step(1e-2, self.model, gradients);
        }
        self
    }

    fn save(self, folder: &Path, step: u64) -> Self {
        let mut checkpoints = Checkpointer::at(folder, &self.device).expect("a folder");
        let state = State::new().module("model", &self.model).optimizer(
            "optimizer",
            &self.optimizer,
            &self.model,
        );
        checkpoints.save(step, state).expect("it can be saved");
        self
    }

    fn load(self, folder: &Path, step: u64) -> Self {
        let checkpoints = Checkpointer::at(folder, &self.device).expect("a folder");
        let saved = checkpoints.open(step).expect("it was saved");
        let optimizer = saved.optimizer("optimizer", self.optimizer, &self.model);
        let loaded = Self {
            optimizer: optimizer.expect("it fits"),
            ..self
        };
        loaded.load_parameters(folder, step)
    }

    fn load_parameters(self, folder: &Path, step: u64) -> Self {
        let checkpoints = Checkpointer::at(folder, &self.device).expect("a folder");
        let saved = checkpoints.open(step).expect("it was saved");
        let model = saved.module("model", self.model).expect("it fits");
        Self { model, ..self }
    }
}

/// What a checkpoint says of where tensors lay: the state of an optimizer lies in pieces, as its parameter does.
#[test]
fn states_of_every_optimizer_lie_in_pieces() {
    for (name, optimizer, counts) in KEPT {
        let folder = tempfile::tempdir().expect("a folder");
        let run = Run::new("fsdp=2", FloatDType::F32, optimizer());
        run.train(0..2).save(folder.path(), 1);
        let saved = Checkpoints::at(folder.path()).open(1).expect("it is there");
        let tensors = &saved.manifest().tensors;
        let parameters = tensors.iter().filter(|it| it.key.starts_with("model."));
        for parameter in parameters {
            let path = &parameter.key["model.".len()..];
            let prefix = format!("optimizer.{path}.");
            let states = tensors.iter().filter(|it| it.key.starts_with(&prefix));
            let states: Vec<_> = states.collect();
            let count = counts[parameter.shape.len() - 1];
            assert_eq!(states.len(), count, "{name}, {path}");
            let layout = &parameter.layout;
            assert!(layout.contains("fsdp"), "{path}: {layout}");
            for state in states {
                let (key, layout) = (&state.key, &state.layout);
                if state.shape == parameter.shape {
                    assert_eq!(*layout, parameter.layout, "{name}, {key}");
                    assert_eq!(state.pieces.len(), 2, "{name}, {key}: {layout}");
                } else {
                    // A number for each row of a matrix, or for each column, is all that Adafactor keeps; ranks have
                    // these whole.
                    assert!(state.shape.contains(&1), "{name}, {key}: {:?}", state.shape);
                    assert_eq!(name, "Adafactor", "{key}");
                }
            }
        }
    }
}

#[test]
fn states_of_every_optimizer_go_back_to_their_ranks() {
    for (name, optimizer, _) in KEPT {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let new = |mesh| Run::new(mesh, FloatDType::F32, optimizer());
        let whole = new("fsdp=2").train(0..2).save(folder, 2).train(2..4);
        whole.save(folder, 4);
        let parts = new("fsdp=2").load(folder, 2).train(2..4);
        parts.save(folder, 5);
        // Without a step, on another mesh; and twice, as a clone has the state too.
        let moved = new("tp=2").load(folder, 2).save(folder, 6);
        let clone = moved.optimizer.clone();
        let moved = moved.train(2..3);
        let moved = Run {
            optimizer: clone,
            ..moved
        };
        moved.load_parameters(folder, 2).train(2..3).save(folder, 7);
        let again = new("tp=2").load(folder, 2).train(2..3);
        again.save(folder, 8);
        let open = |step| Checkpoints::at(folder).open(step).expect("it was saved");
        for (found, expected) in [(5, 4), (6, 2), (7, 8)] {
            let difference = tools::diff(&open(found), &open(expected));
            let difference = difference.expect("they can be read");
            assert!(difference.is_empty(), "{name}, {found}: {difference:?}");
        }
    }
}

/// Burn makes the state of an optimizer in the type of its default device, so another one is refused and not rounded.
#[test]
fn a_state_in_another_type_than_that_of_burns_device_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let new = || Run::new("fsdp=2", FloatDType::BF16, KEPT[0].1());
    new().train(0..1).save(folder.path(), 1);
    let Run {
        device,
        model,
        optimizer,
    } = new();
    let checkpoints = Checkpointer::at(folder.path(), &device).expect("a folder");
    let saved = checkpoints.open(1).expect("it was saved");
    let loaded = saved.optimizer("optimizer", optimizer, &model);
    let error = loaded.err().expect("no state in bf16").to_string();
    assert!(error.contains("is in bf16"), "{error}");
}

/// The base rests and stays what it is; the optimizer has states of factors alone.
#[test]
fn factors_of_lora_are_trained_on_a_mesh() {
    let plain = Device::flex().autodiff();
    plain.seed(3);
    let adapted = |device: &Device| mlp(device).apply_lora(Lora::new(2, 4.0));
    let start = adapted(&plain);
    let record = start.clone().into_record();
    let (expected, _) = train(&plain, start);
    assert!(
        expected[9] < expected[0] * 0.9,
        "nothing learned: {expected:?}"
    );
    for text in ["fsdp=1", "fsdp=2", "tp=2", "fsdp=2,tp=2"] {
        let mesh = DeviceMesh::parse(text).expect("a mesh");
        let device = mesh.device().autodiff();
        let model = adapted(&device).parallelize(&mesh).expect("it fits");
        let model = model.load_record(record.clone());
        let mut optimizer = AdamConfig::new().init();
        let x = batch(0, &device);
        let loss = (model.forward(x.clone()) - x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        assert_eq!(gradients.len(), 4, "two factors of two weights");
        optimizer.step(1e-2, model.clone(), gradients);
        assert_eq!(optimizer.to_record().len(), 8, "two moments of each");
        let (losses, _) = train(&device, model);
        for (found, expected) in losses.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 1e-5,
                "{text}: {found} instead of {expected}"
            );
        }
    }
}
