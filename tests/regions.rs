//! Elementwise work in regions: a decoder trains to the same bits as one operation after the other, on every mesh, and
//! shards to the bits of replication as ever.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::DropoutConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Distribution, FloatDType, Tensor, TensorData};
use burn_dist::mesh::MeshShape;
use burn_dist::{DeviceMesh, OnMesh, ParallelizeWith, Plan, Regions, ShardStrategy};
use minimal::{Decoder, LEARNING_RATE, batch};

const STEPS: usize = 4;

/// Losses, and the parameters afterwards.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<f32>,
    parameters: Vec<Vec<f32>>,
}

/// Takes the parameters of a model.
#[derive(Default)]
struct Parameters(Vec<Vec<f32>>);

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data();
        self.0.push(data.iter::<f32>().collect());
    }
}

/// Trains a model for some steps.
fn train(mut model: Decoder, device: &Device) -> Trained {
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let [bytes, next] = batch(step, device);
        let loss = model.loss(bytes, next);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        losses.push(loss.into_scalar::<f32>());
    }
    let mut parameters = Parameters::default();
    model.visit(&mut parameters);
    Trained {
        losses,
        parameters: parameters.0,
    }
}

/// Trains on a mesh, and checks that ranks held what the plans said.
fn on_mesh(axes: &str, regions: Regions, strategy: ShardStrategy) -> Trained {
    let axes = MeshShape::parse(axes).expect("a mesh");
    let mesh = DeviceMesh::builder()
        .axes(&axes)
        // Even the small gradients of this model are scattered.
        .scatter_bytes_min(0)
        .account_memory(true)
        .regions(regions)
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    device.seed(7);
    let plan = Plan::new().strategy(strategy);
    let model = Decoder::new(&device).parallelize_with(mesh.shape(), &plan);
    let trained = train(model.expect("the model fits the mesh"), &device);
    for rank in device.report().ranks {
        let (predicted, found) = (rank.predicted_peak_bytes, rank.peak_bytes);
        let near = predicted.abs_diff(found) * 100 <= predicted;
        assert!(
            near,
            "{axes}, {regions}: {predicted} bytes predicted, {found} found"
        );
    }
    trained
}

#[test]
fn regions_train_to_the_bits_of_one_operation_after_the_other() {
    for axes in ["", "fsdp=2", "fsdp=2,tp=2"] {
        let [on, off] = [Regions::On, Regions::Off]
            .map(|regions| on_mesh(axes, regions, ShardStrategy::default()));
        assert_eq!(on, off, "{axes}");
    }
}

#[test]
fn shards_have_the_bits_of_replicas_with_regions() {
    let [sharded, replicated] = [ShardStrategy::default(), ShardStrategy::Replicate]
        .map(|strategy| on_mesh("fsdp=2", Regions::On, strategy));
    assert_eq!(sharded, replicated);
}

/// The error of a rounding, relative to what is rounded.
const ROUNDING: f32 = f32::EPSILON / 2.0;
/// A function of ours is off by two units in the last place, that of the library by one; a unit is two roundings of the
/// smallest numbers that have it.
const FUNCTION: f32 = (2.0 + 1.0) * 2.0 * ROUNDING;

/// Two sums of as many terms as a number squared, in two orders: a rounding of each partial sum, to one side as often
/// as to the other.
const fn sums(root_of_terms: u32) -> f32 {
    2.0 * root_of_terms as f32 * ROUNDING
}

/// A norm over 64 columns.
const NORM: f32 = sums(8);
/// A layer: two norms, the softmax over up to 32 keys, the gate of its feed-forward part.
const LAYER: f32 = 2.0 * NORM + (FUNCTION + sums(6)) + FUNCTION;
/// The forward of two layers, a norm, and the logarithm of a sum of 256 exponentials. All else is the same in both
/// modes, or rounded once in both.
const FORWARD: f32 = 2.0 * LAYER + NORM + (2.0 * FUNCTION + sums(16));
/// By how much losses may differ, relative to them: a step carries on what the steps before it were off by.
const TOLERANCE: f32 = STEPS as f32 * FORWARD;

/// Random numbers are the same whether a region draws them or a task before it, on every mesh: of a batch in two types,
/// read by the backward too, with rows that are folded after them; one for each row; and in a window that reads nothing
/// else.
#[test]
fn regions_draw_the_random_numbers_of_tasks() {
    let run = |axes: &str, regions: Regions| {
        let mesh = DeviceMesh::builder()
            .axes(&MeshShape::parse(axes).expect("a mesh"))
            .account_memory(true)
            .regions(regions)
            .build()
            .expect("a mesh");
        let device = mesh.device().autodiff();
        device.seed(11);
        let data: Vec<f32> = (0..37 * 24).map(|i| i as f32 / 100.0 - 4.0).collect();
        let x = Tensor::<2>::from_data(TensorData::new(data, [37, 24]), &device).require_grad();
        let noise = Tensor::<2>::random([37, 24], Distribution::Normal(0.5, 2.0), &device);
        let dropout = DropoutConfig::new(0.3).init();
        let noisy = dropout.forward(x.clone() + noise * 0.5);
        let narrow = dropout.forward(noisy.clone().cast(FloatDType::BF16));
        let rows = softmax(noisy.reshape([37, 4, 6]), 2).reshape([37, 24]);
        let path = Tensor::<2>::random([37, 1], Distribution::Bernoulli(0.8), &device) / 0.8;
        let y = (rows + narrow.cast(FloatDType::F32)) * path;
        let gradients = (y.clone() * y.clone()).sum().backward();
        let shifted = Tensor::<1>::random([1000], Distribution::Uniform(-1.0, 3.0), &device) + 0.25;
        let found = [
            y.into_data(),
            x.grad(&gradients).expect("tracked").into_data(),
            shifted.into_data(),
        ];
        for rank in device.report().ranks {
            let (predicted, found) = (rank.predicted_peak_bytes, rank.peak_bytes);
            assert_eq!(predicted, found, "{axes}, {regions}");
        }
        found
    };
    for axes in ["", "dp=2", "tp=3", "fsdp=2,tp=2", "dp=5"] {
        let [on, off] = [Regions::On, Regions::Off].map(|regions| run(axes, regions));
        assert_eq!(on, off, "{axes}");
        // Sums of a gradient aside, there is one value for all meshes.
        assert_eq!(on[2], run("", Regions::Flex)[2], "{axes}");
    }
}

#[test]
fn regions_train_near_flex() {
    let [on, flex] =
        [Regions::On, Regions::Flex].map(|regions| on_mesh("", regions, ShardStrategy::default()));
    for (step, (on, flex)) in on.losses.iter().zip(&flex.losses).enumerate() {
        println!("step {step}: {on} for {flex}");
        assert!(
            (on - flex).abs() <= TOLERANCE * flex.abs(),
            "step {step}: {on} for {flex}"
        );
    }
}
