//! Elementwise work in regions: a decoder trains to the same bits as one operation after the other, on every mesh, and
//! shards to the bits of replication as ever.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
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
