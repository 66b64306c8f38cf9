//! Random small models under random strategies, reshards, prefetches and checkpoints train like one device.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData, activation};
use burn_dist::{
    Accumulation, ActivationCheckpoint, ParallelizeWith, Plan, Reshard, ShardStrategy, UnitPolicy,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

use super::meshes::{Outcome, builder, weights};
use crate::weights::deterministic;

#[derive(Module, Debug)]
struct Layer {
    norm: Option<LayerNorm>,
    up: Linear,
    down: Option<Linear>,
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Layer>,
}

/// Width of the residual stream.
const DIM: usize = 6;

#[derive(Clone, Debug)]
struct LayerShape {
    norm: bool,
    /// Hidden size, and whether the layers have biases; without, one square layer, its weight used twice.
    hidden: Option<(usize, bool)>,
    frozen: bool,
    strategy: Option<ShardStrategy>,
    checkpoint: bool,
    skip: bool,
}

#[derive(Clone, Debug)]
struct Case {
    layers: Vec<LayerShape>,
    batch: usize,
    axes: &'static str,
    strategy: ShardStrategy,
    reshard: Reshard,
    prefetch: u32,
    checkpoint: ActivationCheckpoint,
    accumulation: Accumulation,
    scatter_bytes_min: usize,
}

fn strategies() -> impl Strategy<Value = ShardStrategy> {
    proptest::sample::select(&ShardStrategy::ALL[..])
}

fn layers() -> impl Strategy<Value = LayerShape> {
    let hidden = proptest::option::weighted(0.7, (1_usize..8, any::<bool>()));
    let rare = || proptest::bool::weighted(0.2);
    let own = proptest::option::of(strategies());
    (any::<bool>(), hidden, rare(), own, rare(), rare()).prop_map(
        |(norm, hidden, frozen, strategy, checkpoint, skip)| LayerShape {
            norm,
            hidden,
            frozen,
            strategy,
            checkpoint,
            skip,
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    let meshes = [
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "dp=2,fsdp=2",
        "fsdp=2,dp=2",
        "fsdp=2,tp=2",
        "zero=2,fsdp=2",
    ];
    let reshards =
        ["always", "last", "every=2", "never"].map(|text| text.parse().expect("a policy"));
    let kept = ["none", "full"].map(|text| text.parse::<ActivationCheckpoint>().expect("a policy"));
    let when = [
        Accumulation::PerWindow,
        Accumulation::PerStep,
        Accumulation::PerMicrobatch,
    ];
    let select = proptest::sample::select::<Reshard>;
    (
        (proptest::collection::vec(layers(), 1..5), 1_usize..6),
        proptest::sample::select(meshes.to_vec()),
        strategies(),
        select(reshards.to_vec()),
        (
            0_u32..4,
            proptest::sample::select(vec![0_usize, 100, 1 << 20]),
        ),
        proptest::sample::select(kept.to_vec()),
        proptest::sample::select(when.to_vec()),
    )
        .prop_map(
            |(
                (layers, batch),
                axes,
                strategy,
                reshard,
                (prefetch, scatter),
                checkpoint,
                accumulation,
            )| Case {
                layers,
                batch,
                axes,
                strategy,
                reshard,
                prefetch,
                checkpoint,
                accumulation,
                scatter_bytes_min: scatter,
            },
        )
}

impl Net {
    fn new(case: &Case, device: &Device) -> Self {
        let linear = |from, to, bias| LinearConfig::new(from, to).with_bias(bias).init(device);
        let layers = case.layers.iter().map(|layer| {
            let (hidden, bias) = layer.hidden.unwrap_or((DIM, false));
            Layer {
                norm: layer.norm.then(|| LayerNormConfig::new(DIM).init(device)),
                up: linear(DIM, hidden, bias),
                down: layer.hidden.map(|_| linear(hidden, DIM, bias)),
            }
        });
        Self {
            layers: layers.collect(),
        }
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for layer in &self.layers {
            let y = match &layer.norm {
                Some(norm) => norm.forward(x.clone()),
                None => x.clone(),
            };
            let y = activation::tanh(layer.up.forward(y));
            let down = layer.down.as_ref().unwrap_or(&layer.up);
            x = x + down.forward(y);
        }
        x
    }
}

fn train(case: &Case, device: &Device, place: impl FnOnce(Net) -> Net) -> Outcome {
    let mut net = deterministic(Net::new(case, device));
    for (layer, shape) in net.layers.iter_mut().zip(&case.layers) {
        if shape.frozen {
            *layer = layer.clone().no_grad();
        }
    }
    let mut net = place(net);
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    let trains = case.layers.iter().any(|layer| !layer.frozen);
    for step in 0..3 {
        let x: Vec<f32> = (0..case.batch * DIM)
            .map(|i| ((i * 7 + step * 5) % 11) as f32 / 11.0 - 0.3)
            .collect();
        let x = Tensor::<2>::from_data(TensorData::new(x, [case.batch, DIM]), device);
        let loss = (net.forward(x.clone()) - x.flip([1])).square().mean();
        if trains {
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(1e-2, net, gradients);
        }
        losses.push(loss.into_scalar());
    }
    Outcome {
        losses,
        weights: weights(&net),
    }
}

fn plan(case: &Case) -> Plan {
    let mut plan = Plan::new()
        .unit("layers")
        .reshard(case.reshard)
        .prefetch(case.prefetch)
        .checkpoint(case.checkpoint)
        .accumulation(case.accumulation)
        .strategy(case.strategy);
    for (index, layer) in case.layers.iter().enumerate() {
        let path = format!("layers.{index}");
        if layer.hidden.is_some() && case.axes.contains("tp") {
            plan = plan
                .colwise(&format!("{path}.up"))
                .rowwise(&format!("{path}.down"));
        }
        if let Some(strategy) = layer.strategy {
            plan = plan.unit_policy(&path, UnitPolicy::new().strategy(strategy));
        }
        if layer.checkpoint {
            plan = plan.unit_policy(
                &path,
                UnitPolicy::new().checkpoint(ActivationCheckpoint::Full),
            );
        }
        if layer.skip {
            plan = plan.skip(&path);
        }
    }
    plan
}

/// Trains on a mesh and on one device.
fn check(case: &Case) {
    let expected = train(case, &Device::flex().autodiff(), |net| net);
    let builder = builder(case.axes).scatter_bytes_min(case.scatter_bytes_min);
    let mesh = builder.build().expect("a mesh");
    let found = train(case, &mesh.device().autodiff(), |net| {
        net.parallelize_with(&mesh, &plan(case)).expect("a plan")
    });
    found.assert_close(&expected, &format!("{case:?}"));
}

proptest! {
    #![proptest_config(Config {
        cases: 64,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..Config::default()
    })]

    #[test]
    fn random_models_under_random_policies(case in cases()) {
        check(&case);
    }
}

/// Found at random once: both gathers of one parameter start in one launch, which must not take it away after the
/// first.
#[test]
fn a_parameter_gathered_twice_at_once() {
    let layer = |hidden| LayerShape {
        norm: false,
        hidden,
        frozen: false,
        strategy: None,
        checkpoint: false,
        skip: false,
    };
    check(&Case {
        layers: vec![layer(Some((1, true))), layer(None)],
        batch: 1,
        axes: "fsdp=2",
        strategy: ShardStrategy::Full,
        reshard: Reshard::Always,
        prefetch: 0,
        checkpoint: ActivationCheckpoint::Full,
        accumulation: Accumulation::PerWindow,
        scatter_bytes_min: 0,
    });
}
