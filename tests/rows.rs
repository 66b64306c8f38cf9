//! Steps of few rows: what a strategy promises of memory holds under every batch size.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig,
};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::explanation::MemoryClass;
use burn_dist::mesh::{MeshShape, Rank};
use burn_dist::optim::{Ema, clip_grad_norm};
use burn_dist::{DTensor, DeviceMesh, OnMesh, ParallelizeWith, Plan, ShardStrategy};

use crate::llama::Size;
use crate::planned;
use crate::weights::deterministic;

const FROM: usize = 6;
const HIDDEN: usize = 8;

/// Layers of uneven sizes, one matrix used twice, and a last layer of one column.
#[derive(Module, Debug)]
struct Net {
    up: Linear,
    norm: RmsNorm,
    twice: Linear,
    down: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        deterministic(Self {
            up: LinearConfig::new(FROM, HIDDEN).init(device),
            norm: RmsNormConfig::new(HIDDEN).init(device),
            twice: LinearConfig::new(HIDDEN, HIDDEN)
                .with_bias(false)
                .init(device),
            down: LinearConfig::new(HIDDEN, 1).init(device),
        })
    }

    fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = self.norm.forward(gelu(self.up.forward(x)));
        let x = gelu(self.twice.forward(x));
        self.down.forward(self.twice.forward(x))
    }
}

fn batch(rows: usize, step: usize, device: &Device) -> Tensor<2> {
    let x: Vec<f32> = (0..rows * FROM)
        .map(|i| ((i * 11 + step * 17) % 23) as f32 / 23.0 - 0.3)
        .collect();
    Tensor::from_data(TensorData::new(x, [rows, FROM]), device)
}

/// The content of all parameters.
fn read(module: &impl Module) -> Vec<TensorData> {
    struct Read(Vec<TensorData>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut read = Read(Vec::new());
    module.visit(&mut read);
    read.0
}

/// Bytes that each rank holds of all parameters, each of which rests over the shard axes if `sharded`; one element
/// stays whole.
fn held(net: &Net, mesh: &MeshShape, sharded: bool, what: &str) -> Vec<usize> {
    struct Held<'a> {
        mesh: &'a MeshShape,
        rests: bool,
        bytes: Vec<usize>,
        what: &'a str,
    }
    impl ModuleVisitor for Held<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let layout = param.val().layout().expect("it is somewhere");
            let text = layout.display(self.mesh).to_string();
            let mut shard_axes = self.mesh.shard_axes();
            shard_axes.retain(|axis| self.mesh.size(*axis) > 1);
            if !self.rests || layout.numel() == 1 {
                shard_axes.clear();
            }
            assert_eq!(layout.at_rest, shard_axes, "{}: {text}", self.what);
            for (rank, bytes) in self.bytes.iter_mut().enumerate() {
                *bytes += size_of::<f32>() * layout.local_numel(self.mesh, Rank(rank as u32));
            }
        }
    }
    let mut held = Held {
        mesh,
        rests: sharded,
        bytes: vec![0; mesh.num_ranks()],
        what,
    };
    net.visit(&mut held);
    held.bytes
}

/// A step on no rows at all moves nothing, and one on fewer than there are ranks is that of one device.
#[test]
fn empty_batches_are_steps_too() {
    fn step(device: &Device, adam: bool, x: Tensor<3>, net: Net) -> (Vec<TensorData>, f64) {
        let loss = net.forward(x).square().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        let net = match adam {
            true => AdamConfig::new().init().step(0.1, net, gradients),
            false => SgdConfig::new().init().step(0.1, net, gradients),
        };
        device.sync().expect("it ends");
        (read(&net), loss.into_scalar())
    }
    fn input(rows: usize, seq: usize, device: &Device) -> Tensor<3> {
        // A reshape takes a size of 0 for that of its input.
        let data = batch(rows * seq, 0, device).into_data();
        let dtype = data.dtype();
        Tensor::from_data(
            TensorData::from_bytes(data.into_bytes(), [rows, seq, FROM], dtype),
            device,
        )
    }
    let one = Device::flex().autodiff();
    for (rows, seq) in [(0, 1), (0, 5), (1, 0), (1, 1), (2, 1), (2, 3)] {
        for adam in [false, true] {
            let (weights, loss) = match rows * seq {
                0 => (read(&Net::new(&one)), 0.0),
                _ => step(&one, adam, input(rows, seq, &one), Net::new(&one)),
            };
            for axes in [
                "",
                "dp=2",
                "fsdp=2",
                "fsdp=3",
                "tp=2",
                "fsdp=2,tp=2",
                "dp=2,fsdp=2",
            ] {
                let what = format!("{rows} of {seq} on `{axes}`, adam: {adam}");
                let mesh = DeviceMesh::parse(axes).expect("a mesh");
                let device = mesh.device().autodiff();
                let plan = match axes.contains("tp") {
                    true => Plan::new().colwise("up").rowwise("twice"),
                    false => Plan::new(),
                };
                let net = Net::new(&device).parallelize_with(&mesh, &plan);
                let net = net.expect("a plan");
                let (found, sum) = step(&device, adam, input(rows, seq, &device), net);
                assert_close(&found, &weights, &what);
                assert!((sum - loss).abs() < 1e-4, "{what}: {sum}, not {loss}");
                for (found, expected) in found.iter().zip(&weights) {
                    assert_eq!(found.num_elements(), expected.num_elements(), "{what}");
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Optim {
    Sgd,
    Adam,
    AdamW,
}

impl Optim {
    /// States of the size of the parameters.
    fn num_states(self) -> usize {
        match self {
            Self::Sgd => 1,
            Self::Adam | Self::AdamW => 2,
        }
    }
}

/// Two steps; `apart`: what the optimizer does is in a window of its own.
fn train(
    device: &Device,
    optim: Optim,
    (rows, apart): (usize, bool),
    place: impl FnOnce(Net) -> Net,
    then: impl FnOnce(&Net),
) -> Vec<TensorData> {
    fn steps(
        device: &Device,
        mut optimizer: ModuleOptimizer,
        (rows, apart): (usize, bool),
        mut net: Net,
        then: impl FnOnce(&Net),
    ) -> Vec<TensorData> {
        for step in 0..2 {
            let loss = net.forward(batch(rows, step, device)).square().mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            if apart {
                loss.clone().into_data();
            }
            net = optimizer.step(1e-2, net, gradients);
            match apart {
                true => device.sync().expect("it ends"),
                false => drop(loss.into_data()),
            }
        }
        device.sync().expect("it ends");
        then(&net);
        drop(optimizer);
        read(&net)
    }
    let net = place(Net::new(device));
    let run = (rows, apart);
    match optim {
        Optim::Sgd => {
            let momentum = MomentumConfig::new().with_momentum(0.9);
            let config = SgdConfig::new().with_momentum(Some(momentum));
            steps(device, config.init(), run, net, then)
        }
        Optim::Adam => steps(device, AdamConfig::new().init(), run, net, then),
        Optim::AdamW => steps(device, AdamWConfig::new().init(), run, net, then),
    }
}

fn assert_close(found: &[TensorData], expected: &[TensorData], what: &str) {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        let pairs = found.iter::<f64>().zip(expected.iter::<f64>());
        for (a, b) in pairs {
            // Adam's first steps are of one size whatever the gradient: where that is zero but for rounding, they
            // differ by as much.
            let error = (a - b).abs();
            assert!(error < 1e-4, "{what}: parameter {number}: {a}, not {b}");
        }
    }
}

/// Parameters and moments of two steps on one mesh, for all strategies and optimizers; all strategies give the same
/// bits.
fn state_rests(axes: &str, plan: &Plan) {
    // Fewer than ranks, as many, more, and parts of one size and of two.
    for rows in [1, 2, 3, 4, 5, 8] {
        for optim in [Optim::Sgd, Optim::Adam, Optim::AdamW] {
            for apart in [false, true] {
                let expected = train(
                    &Device::flex().autodiff(),
                    optim,
                    (rows, apart),
                    |net| net,
                    |_| (),
                );
                let mut bits: Option<Vec<TensorData>> = None;
                for strategy in ShardStrategy::ALL {
                    let what =
                        format!("{axes}, {strategy}, {optim:?}, {rows} row(s), apart: {apart}");
                    let mesh = DeviceMesh::parse(axes).expect("a mesh");
                    let device = mesh.device().autodiff();
                    let plan = plan.clone().strategy(strategy);
                    let place = |net: Net| net.parallelize_with(&mesh, &plan).expect("a plan");
                    let found = train(&device, optim, (rows, apart), place, |net| {
                        let sharded = strategy != ShardStrategy::Replicate;
                        let parameters = held(net, mesh.shape(), sharded, &what);
                        let ranks = device.report().ranks;
                        assert_eq!(ranks.len(), parameters.len());
                        for (rank, parameters) in ranks.iter().zip(parameters) {
                            let expected = parameters * (1 + optim.num_states());
                            let found = rank.at_rest_bytes as usize;
                            assert_eq!(found, expected, "{what}, rank {}", rank.rank);
                        }
                    });
                    assert_close(&found, &expected, &what);
                    let bits = bits.get_or_insert_with(|| found.clone());
                    for (found, expected) in found.iter().zip(bits) {
                        assert!(found.bytes() == expected.bytes(), "{what}: other bits");
                    }
                }
            }
        }
    }
}

macro_rules! state_rests {
    ($($name:ident: $axes:literal, $plan:expr;)*) => {
        mod parameters_and_moments_rest_on {
            use super::*;

            $(
                #[test]
                fn $name() {
                    state_rests($axes, &$plan);
                }
            )*
        }
    };
}

state_rests! {
    one_rank: "fsdp=1", Plan::new();
    two_ranks: "fsdp=2", Plan::new();
    three_ranks: "fsdp=3", Plan::new();
    four_ranks: "fsdp=4", Plan::new();
    replicas: "dp=2,fsdp=2", Plan::new();
    split_layers: "fsdp=2,tp=2", Plan::new().colwise("up").rowwise("twice");
}

/// Gradients that live on beyond their window, without an optimizer in it.
#[test]
fn gradients_rest() {
    for axes in ["fsdp=2", "fsdp=3", "fsdp=4", "dp=2,fsdp=2"] {
        for strategy in ShardStrategy::ALL {
            for rows in 1..=9 {
                let what = format!("{axes}, {strategy}, {rows} row(s)");
                let mesh = DeviceMesh::parse(axes).expect("a mesh");
                let device = mesh.device().autodiff();
                let net = Net::new(&device)
                    .parallelize_with(&mesh, &Plan::new().strategy(strategy))
                    .expect("a plan");
                let loss = net.forward(batch(rows, 0, &device)).square().mean();
                let gradients = GradientsParams::from_grads(loss.backward(), &net);
                loss.into_data();
                let rests = strategy != ShardStrategy::Replicate;
                let shape = mesh.shape();
                let check = |layout: burn_dist::layout::Layout, name: &str| {
                    let text = layout.display(shape);
                    assert_eq!(!layout.at_rest.is_empty(), rests, "{what}: {name} {text}");
                    assert_eq!(layout.is_replicated(), !rests, "{what}: {name} {text}");
                };
                for (layer, name) in [(&net.up, "up"), (&net.twice, "twice"), (&net.down, "down")] {
                    let weight = gradients.get::<2>(layer.weight.id);
                    check(
                        weight.expect("it has one").layout().expect("somewhere"),
                        name,
                    );
                }
                // What operations of other kinds make (the gain of a norm, a bias) is known for a gradient by its use
                // alone.
            }
        }
    }
}

/// Two microbatches a step, gradients clipped, a frozen layer, and an average of the weights.
fn long_way(
    device: &Device,
    rows: usize,
    reads: bool,
    place: impl FnOnce(Net) -> Net,
    then: impl FnOnce(&Net),
) -> Vec<TensorData> {
    let mut net = place(Net::new(device));
    net.up = net.up.no_grad();
    let mut ema = Ema::new(&net, 0.8);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    for step in 0..2 {
        let mut accumulator = GradientsAccumulator::new();
        for microbatch in 0..2 {
            let x = batch(rows, 2 * step + microbatch, device);
            let loss = net.forward(x).square().mean() / 2.0;
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            accumulator.accumulate(&net, gradients);
            if reads {
                loss.into_data();
            }
        }
        let (gradients, _) = clip_grad_norm(&net, accumulator.grads(), 0.05);
        net = optimizer.step(1e-2, net, gradients);
        ema.update(&net);
    }
    device.sync().expect("it ends");
    then(&net);
    drop(optimizer);
    read(&net)
}

#[test]
fn state_rests_after_clipping_and_accumulation() {
    for rows in [1, 2, 3, 8] {
        for reads in [false, true] {
            let expected = long_way(&Device::flex().autodiff(), rows, reads, |net| net, |_| ());
            for axes in ["fsdp=3", "fsdp=4", "dp=2,fsdp=2"] {
                let what = format!("{axes}, {rows} row(s), reads: {reads}");
                let mesh = DeviceMesh::parse(axes).expect("a mesh");
                let device: Device = mesh.device().autodiff();
                let place = |net: Net| {
                    let placed = net.parallelize_with(&mesh, &Plan::new());
                    placed.expect("a plan")
                };
                let found = long_way(&device, rows, reads, place, |net| {
                    let all = held(net, mesh.shape(), true, &what);
                    // The first layer is frozen: parameter and average, no moments.
                    let up = FROM * HIDDEN + HIDDEN;
                    let ranks = device.report().ranks;
                    let total: usize = ranks.iter().map(|rank| rank.at_rest_bytes as usize).sum();
                    let whole: usize = all.iter().sum();
                    let replicas: usize = mesh
                        .shape()
                        .axis_indices()
                        .filter(|axis| mesh.shape().role(*axis).replicates())
                        .map(|axis| mesh.shape().size(axis))
                        .product();
                    let frozen = 2 * size_of::<f32>() * up * replicas;
                    assert_eq!(total, 4 * whole - frozen, "{what}");
                });
                assert_close(&found, &expected, &what);
            }
        }
    }
}

/// What the optimizer of the example holds does not depend on how long its sequences are.
#[test]
fn moments_of_a_planned_model_take_the_same_at_every_length() {
    let moments = |seq: usize, batch: usize| {
        let mesh = DeviceMesh::builder().axes(&"fsdp=4".parse().expect("a mesh"));
        let plan = planned::llama_step(Size::Tiny, mesh, |plan| plan, (seq, batch));
        let peaks = plan.memory.iter().map(|rank| {
            let of = |class| rank.class_peaks.get(&class).copied().unwrap_or(0);
            (of(MemoryClass::Optimizer), of(MemoryClass::AtRest))
        });
        peaks.collect::<Vec<_>>()
    };
    let expected = moments(256, 8);
    for (seq, batch) in [(1, 8), (8, 4), (8, 2), (32, 1)] {
        assert_eq!(moments(seq, batch), expected, "{batch} of {seq}");
    }
}
