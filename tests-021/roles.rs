//! What a value is, is known from what a program does with it, not from its shape.

use burn::backend::{Autodiff, Flex};
use burn::module::{Initializer, Module, Param};
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use burn_dist::explanation::Explanation;
use burn_dist::{
    ActivationCheckpoint, DeviceMesh, Dist, MeshBackend, Parallelize, ParallelizeWith,
};

type M = Autodiff<Dist<Flex>>;

const SEQUENCE: usize = 128;
const WIDTH: usize = 64;

#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
struct Block<B: Backend> {
    #[parallel(sequence)]
    norm: LayerNorm<B>,
    #[parallel(colwise)]
    up: Linear<B>,
    #[parallel(rowwise)]
    down: Linear<B>,
}

/// A residual stream of shape `[1, SEQUENCE, WIDTH]`, to which a position parameter is added.
#[derive(Module, Debug, Parallelize)]
struct Net<B: Backend, const D: usize> {
    patch: Linear<B>,
    position: Param<Tensor<B, D>>,
    blocks: Vec<Block<B>>,
}

impl<B: Backend, const D: usize> Net<B, D> {
    fn new(position: [usize; D], device: &B::Device) -> Self {
        let init = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        let block = |_| Block {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        };
        Self {
            patch: LinearConfig::new(16, WIDTH).init(device),
            position: init.init(position, device),
            blocks: (0..4).map(block).collect(),
        }
    }

    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let mut x = self.patch.forward(x) + self.position.val().unsqueeze::<3>();
        for block in &self.blocks {
            let h = block.up.forward(block.norm.forward(x.clone()));
            x = x + block.down.forward(Gelu::new().forward(h));
        }
        x
    }
}

/// A step with a batch of one; returns the loss and the model after it.
fn step<B: AutodiffBackend, const D: usize>(
    model: Net<B, D>,
    optimizer: &mut impl Optimizer<Net<B, D>, B>,
    device: &B::Device,
) -> (Net<B, D>, Tensor<B, 1>) {
    let x = Tensor::<B, 3>::random([1, SEQUENCE, 16], Distribution::Default, device);
    // A batch is data.
    let x = Tensor::from_data(x.into_data(), device);
    let loss = model.forward(x).powf_scalar(2.0).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    (optimizer.step(1e-2, model, gradients), loss)
}

/// Plans a steady step with a position parameter of that shape, and runs it; returns its plan and the losses.
fn train<const D: usize>(
    position: [usize; D],
    mesh: &str,
    checkpoint: ActivationCheckpoint,
) -> (Explanation, Vec<f32>) {
    let mesh = DeviceMesh::builder()
        .axes(&mesh.parse().expect("a mesh"))
        .account_memory(true)
        .build()
        .expect("a mesh");
    let device = mesh.device();
    <M as Backend>::seed(&device, 3);
    let model = Net::<M, D>::new(position, &device);
    let plan = model.plan().checkpoint(checkpoint);
    let model = model.parallelize_with(&mesh, &plan);
    let mut optimizer = AdamWConfig::new().init::<M, Net<M, D>>();
    let (mut model, first) = step(model.expect("it fits"), &mut optimizer, &device);
    let mut losses = vec![first.into_scalar()];
    let (_, explanation) = burn_dist::explain::<M, _>(&device, || {
        let (next, loss) = step(model.clone(), &mut optimizer, &device);
        model = next;
        losses.push(loss.into_scalar());
    });
    for rank in M::report(&device).ranks {
        assert_eq!(rank.predicted_peak_bytes, rank.peak_bytes);
    }
    (explanation, losses)
}

/// At batch 1 the residual stream has the shape of a position parameter `[1, S, D]`, and not of one `[S, D]`.
#[test]
fn a_position_parameter_with_a_batch_dim_costs_no_more() {
    for mesh in ["dp=1", "tp=2", "fsdp=2", "fsdp=2,tp=2"] {
        for checkpoint in [ActivationCheckpoint::None, ActivationCheckpoint::Full] {
            let (with, losses) = train([1, SEQUENCE, WIDTH], mesh, checkpoint);
            let (without, expected) = train([SEQUENCE, WIDTH], mesh, checkpoint);
            assert_eq!(losses, expected, "{mesh} {checkpoint}");
            for (with, without) in with.memory.iter().zip(&without.memory) {
                let (peak, reference) = (with.peak_bytes, without.peak_bytes);
                assert!(
                    peak as f64 <= 1.02 * reference as f64,
                    "{mesh} {checkpoint}: {peak} bytes with a batch dim, {reference} without"
                );
            }
            assert_eq!(with.recomputed, without.recomputed, "{mesh} {checkpoint}");
        }
    }
}
