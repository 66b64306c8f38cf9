//! The model trains on every mesh as on one rank: losses, routing and gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{self, Tensor};
use burn_dist::nn::mixture::{Capacity, MixtureConfig};
use burn_dist::trainer::model::Model;
use burn_dist::trainer::optimizer::OptimizerConfig;
use burn_dist::trainer::step;
use burn_dist::{DeviceMesh, ParallelizeWith};
use moe::data::Ciphers;
use moe::model::{Config, Decoder};
use moe::train::Figures;

one_thread::one_thread_per_process!();

const BATCH: usize = 8;
const SEQ: usize = 16;

/// AdamW, as these losses were found with.
const OPTIMIZER: OptimizerConfig = OptimizerConfig {
    beta1: 0.9,
    beta2: 0.98,
    eps: 1e-5,
    weight_decay: 0.01,
};

/// Axes of the mesh, and those that experts are split over in the place of `ep`.
const MESHES: [(&str, Option<&str>); 10] = [
    ("ep=2", None),
    ("ep=4", None),
    ("fsdp=2,ep=2", None),
    ("ep=2,fsdp=2", None),
    ("ep=2,tp=2", None),
    ("dp=2,ep=2", None),
    ("ep=2,cp=2", None),
    ("pp=2,ep=2", None),
    ("fsdp=4", Some("fsdp")),
    ("fsdp=2,cp=2", Some("cp,fsdp")),
];

fn config() -> Config {
    let usual = Config::default();
    Config {
        mixture: MixtureConfig {
            width: 32,
            hidden: 48,
            groups: 2,
            ..usual.mixture
        },
        ..usual
    }
}

fn on(axes: &str, over: Option<&str>, config: &Config) -> (DeviceMesh, Decoder) {
    let mesh = DeviceMesh::parse(axes).expect("a mesh");
    let device = mesh.device().autodiff();
    device.seed(3);
    let config = Config {
        experts_over: over.map(str::to_string),
        ..config.clone()
    };
    let model = config.init(&device);
    let plan = model.plan_on(mesh.shape()).expect("a plan");
    let model = model.parallelize_with(&mesh, &plan).expect("it fits");
    (mesh, model)
}

fn figures(axes: &str, over: Option<&str>, config: &Config, steps: usize) -> Vec<Figures> {
    let (mesh, mut model) = on(axes, over, config);
    let mut optim = OPTIMIZER.init();
    let ciphers = Ciphers::new(5);
    let step = |step| {
        let batch = ciphers.rows(step * BATCH..(step + 1) * BATCH, SEQ);
        let before = model.clone();
        let (next, figures) =
            step::one(before, &mut optim, &batch, 5e-3, &mesh.device().autodiff());
        model = next;
        let values = figures.try_into_data().expect("the step is taken");
        let values: Vec<f32> = values.iter::<f32>().collect();
        Figures::of(values[0], &values[1..])
    };
    (0..steps).map(step).collect()
}

fn assert_alike(found: &[Figures], expected: &[Figures], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let gap = (found.loss - expected.loss).abs();
        assert!(
            gap <= 1e-4 * expected.loss,
            "{what}, step {step}: {found:?}, not {expected:?}"
        );
        // The same tokens go to the same experts.
        assert_eq!(found.load, expected.load, "{what}, step {step}");
        assert_eq!(found.dropped, expected.dropped, "{what}, step {step}");
    }
}

#[test]
fn losses_and_routing_are_those_of_one_rank() {
    let config = config();
    let expected = figures("", None, &config, 12);
    let (first, last) = (&expected[0], &expected[11]);
    assert!(last.loss < 0.85 * first.loss, "{expected:?}");
    assert!(
        expected.iter().any(|figures| figures.dropped > 0.0),
        "{expected:?}"
    );
    for (axes, over) in MESHES {
        let found = figures(axes, over, &config, 12);
        assert_alike(&found, &expected, axes);
    }
}

#[test]
fn nothing_is_dropped_in_the_worst_case() {
    let mut config = config();
    config.mixture.capacity = Capacity::Dropless;
    let expected = figures("", None, &config, 3);
    let dropped: Vec<f32> = expected.iter().map(|figures| figures.dropped).collect();
    assert_eq!(dropped, [0.0; 3]);
    assert_alike(&figures("ep=4", None, &config, 3), &expected, "ep=4");
    // One slot for every 16 pairs drops most of them.
    let mut narrow = config;
    narrow.mixture.capacity = Capacity::Factor(0.25);
    let expected = figures("", None, &narrow, 3);
    assert!(expected[0].dropped > 0.5 * (2 * 2 * BATCH * SEQ) as f32);
    assert_alike(&figures("ep=4", None, &narrow, 3), &expected, "ep=4");
}

#[test]
fn one_choice_and_no_shared_layer_train_too() {
    let usual = config();
    let config = Config {
        layers: 1,
        mixture: MixtureConfig {
            top_k: 1,
            shared: false,
            groups: 1,
            ..usual.mixture
        },
        ..usual
    };
    let expected = figures("", None, &config, 10);
    for axes in ["ep=2", "fsdp=2,ep=2"] {
        assert_alike(&figures(axes, None, &config, 10), &expected, axes);
    }
}

/// The gradients of all parameters, whole, with their paths.
struct Gradients<'a> {
    of: &'a tensor::Gradients,
    path: Vec<String>,
    found: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Gradients<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.of).expect("it is used");
        let values = gradient.into_data().try_to_vec().expect("f32");
        self.found.push((self.path.join("."), values));
    }
}

fn gradients(axes: &str, over: Option<&str>) -> Vec<(String, Vec<f32>)> {
    let (mesh, model) = on(axes, over, &config());
    let (tokens, next) = Ciphers::new(5).rows(0..BATCH, SEQ);
    let device = mesh.device().autodiff();
    let (tokens, next) = (tokens.on(&device), next.on(&device));
    let of = model.losses(tokens, next).total.backward();
    let mut gradients = Gradients {
        of: &of,
        path: Vec::new(),
        found: Vec::new(),
    };
    model.visit(&mut gradients);
    gradients.found
}

#[test]
fn gradients_are_those_of_one_rank() {
    let expected = gradients("", None);
    assert_eq!(expected.len(), 1 + 2 * (2 + 4 + 1 + 3 + 3) + 2);
    for (axes, over) in MESHES {
        for ((path, found), (_, expected)) in gradients(axes, over).iter().zip(&expected) {
            let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            assert!(largest > 0.0, "{path}");
            let pairs = found.iter().zip(expected);
            let gap = pairs.fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
            // Sums of at most 128 tokens in another order, in every layer.
            assert!(gap <= 1e-5 * largest, "{axes}: {path}: {gap} of {largest}");
        }
    }
}
