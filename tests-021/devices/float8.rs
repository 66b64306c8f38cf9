//! Float8 on a device, beside the reference on the host.

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Tensor, TensorData};
use burn_dist::{
    DeviceMesh, Dist, Float8, MeshBackend, MeshDevice, ParallelizeWith, Plan, Scaling,
};
use burn_ir::BackendIr;

use crate::weights::deterministic;

const SCALINGS: [Scaling; 3] = [Scaling::Tensorwise, Scaling::Rowwise, Scaling::Blockwise128];
const ROWS: usize = 8;
const SIZE: usize = 16;

fn mesh(axes: &str) -> DeviceMesh {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh")
}

/// Three layers, of which the last is a head and stays as it is.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
    head: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(device: &B::Device) -> Self {
        Net {
            up: LinearConfig::new(SIZE, 2 * SIZE).init(device),
            down: LinearConfig::new(2 * SIZE, SIZE).init(device),
            head: LinearConfig::new(SIZE, SIZE).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let h = burn::tensor::activation::relu(self.up.forward(x));
        self.head.forward(self.down.forward(h))
    }
}

fn numbers(count: usize, salt: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + salt * 11 + 5) % 97) as f32 / 40.0 - 1.2;
    (0..count).map(number).collect()
}

/// The losses of a few steps.
fn losses<B: BackendIr>(axes: &str, plan: &Plan) -> Vec<f32>
where
    Autodiff<Dist<B>>: AutodiffBackend<Device = MeshDevice> + MeshBackend,
{
    let mesh = mesh(axes);
    let device = mesh.device();
    let net = deterministic(Net::<Autodiff<Dist<B>>>::new(&device));
    let mut net = net.parallelize_with(&mesh, plan).expect("a plan");
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let tensor = |salt: usize| {
            let data = TensorData::new(numbers(ROWS * SIZE, salt), [ROWS, SIZE]);
            Tensor::<Autodiff<Dist<B>>, 2>::from_data(data, &device)
        };
        let loss = (net.forward(tensor(1)) - tensor(2)).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.5, net, gradients);
        losses.push(loss.into_scalar().elem());
    }
    losses
}

const STEPS: usize = 6;

/// A device adds up in an order of its own, and may fuse products into sums; all else of float8 has the same bits. Where
/// a sum is off by a rounding, a value beside a boundary falls to the other side: one term of the 16 of a product is
/// off by a unit of e4m3, 1/8 of it at most, or of e5m2, 1/4. That is one row of 8 by 1/64 of its values at most, or
/// 2e-3 of a loss, for each value that falls so: one in a thousand does, of the 1,500 that a step quantises.
pub(crate) fn trains_as_on_the_host<B: BackendIr>()
where
    Autodiff<Dist<B>>: AutodiffBackend<Device = MeshDevice> + MeshBackend,
{
    for scaling in SCALINGS {
        let plan = Plan::new().float8(Float8::new(scaling));
        for (axes, plan) in [
            ("", plan.clone()),
            ("fsdp=2", plan.clone()),
            ("dp=2", plan.clone()),
            ("tp=2", plan.clone().colwise("up").rowwise("down")),
        ] {
            let expected = losses::<Flex>(axes, &plan);
            let found = losses::<B>(axes, &plan);
            assert!(
                expected[STEPS - 1] < 0.9 * expected[0],
                "it trains: {expected:?}"
            );
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let error = ((found - expected) / expected).abs();
                assert!(
                    error < 4e-3,
                    "{scaling} on `{axes}`, step {step}: {found}, {expected} on the host"
                );
            }
            let without = losses::<B>(axes, &plan.float8(None));
            assert_ne!(found, without, "float8 changes values");
        }
    }
}

/// Two layers, of which the first computes in float8.
#[derive(Module, Debug)]
struct Pair<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

/// The first layer doubles, and the second gives it back: each sum is one value in 8 bits by another, divided by their
/// scales, and zeros.
fn doubled<B: BackendIr>(axes: &str, plan: &Plan, x: &[f32]) -> Vec<u32>
where
    Autodiff<Dist<B>>: AutodiffBackend<Device = MeshDevice> + MeshBackend,
{
    let mesh = mesh(axes);
    let device = mesh.device();
    let linear = || {
        LinearConfig::new(SIZE, SIZE)
            .with_bias(false)
            .init::<Autodiff<Dist<B>>>(&device)
    };
    let (mut first, mut second) = (linear(), linear());
    let eye = Tensor::<Autodiff<Dist<B>>, 2>::eye(SIZE, &device);
    first.weight = first.weight.map(|_| eye.clone() * 2.0);
    second.weight = second.weight.map(|_| eye);
    let pair = Pair { first, second };
    let pair = pair.parallelize_with(&mesh, plan).expect("a plan");
    let x = Tensor::<Autodiff<Dist<B>>, 2>::from_data(
        TensorData::new(x.to_vec(), [ROWS, SIZE]),
        &device,
    );
    let y = pair.second.forward(pair.first.forward(x)).into_data();
    y.iter::<f32>().map(f32::to_bits).collect()
}

/// Maxima, scales, values in 8 bits and their inverse have the bits of the host.
pub(crate) fn has_the_bits_of_the_host<B: BackendIr>()
where
    Autodiff<Dist<B>>: AutodiffBackend<Device = MeshDevice> + MeshBackend,
{
    for scaling in SCALINGS {
        let plan = Plan::new().float8(Float8::new(scaling));
        for salt in 0..4 {
            let mut x = numbers(ROWS * SIZE, salt);
            // Of many sizes.
            for (index, x) in x.iter_mut().enumerate() {
                *x *= 2f32.powi((index * 7 % 23) as i32 - 12);
            }
            for axes in ["", "fsdp=2", "tp=2"] {
                let expected = doubled::<Flex>(axes, &plan, &x);
                let found = doubled::<B>(axes, &plan, &x);
                assert_eq!(found, expected, "{scaling} on `{axes}`");
            }
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = numbers(ROWS * SIZE, 9);
            x[3 * SIZE + 5] = bad;
            for axes in ["", "fsdp=2", "tp=2"] {
                for (index, y) in doubled::<B>(axes, &plan, &x).into_iter().enumerate() {
                    let is_nan = scaling == Scaling::Tensorwise || index / SIZE == 3;
                    let found = f32::from_bits(y).is_nan();
                    assert_eq!(found, is_nan, "{bad} in {scaling} on `{axes}`, {index}");
                }
            }
        }
    }
}
