//! Low-rank adapters on frozen layers: what is frozen is gathered, and no gradient of it travels.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, TensorData, activation};
use burn_dist::explanation::Explanation;
use burn_dist::{ParallelizeWith, Plan};

use super::meshes::{Outcome, settings, weights};
use crate::weights::deterministic;

const FROM: usize = 12;
const TO: usize = 20;
const RANK: usize = 3;
const BATCH: usize = 7;

/// `x W + x A B`, with `W` frozen (LoRA, arXiv:2106.09685).
#[derive(Module, Debug)]
struct Adapted {
    base: Linear,
    a: Linear,
    b: Linear,
}

impl Adapted {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Self {
            base: LinearConfig::new(from, to).init(device),
            a: linear(from, RANK),
            b: linear(RANK, to),
        }
    }

    fn frozen(self) -> Self {
        Self {
            base: self.base.no_grad(),
            ..self
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.base.forward(x.clone()) + self.b.forward(self.a.forward(x))
    }
}

#[derive(Module, Debug)]
struct Net {
    up: Adapted,
    down: Adapted,
}

fn split() -> Plan {
    Plan::new()
        .colwise("up.base")
        .colwise("up.b")
        .rowwise("down.base")
        .rowwise("down.a")
}

fn train(
    device: &Device,
    place: impl FnOnce(Net) -> Net,
    mut step_of: impl FnMut(&mut dyn FnMut()),
) -> Outcome {
    let net = deterministic(Net {
        up: Adapted::new(FROM, TO, device),
        down: Adapted::new(TO, FROM, device),
    });
    let mut net = Some(place(Net {
        up: net.up.frozen(),
        down: net.down.frozen(),
    }));
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..5 {
        step_of(&mut || {
            let model = net.take().expect("put back after each step");
            let x: Vec<f32> = (0..BATCH * FROM)
                .map(|i| ((i * 11 + step * 17) % 23) as f32 / 23.0 - 0.5)
                .collect();
            let x = Tensor::<2>::from_data(TensorData::new(x, [BATCH, FROM]), device);
            let y = model
                .down
                .forward(activation::gelu(model.up.forward(x.clone())));
            let loss = (y - x).square().mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            net = Some(optimizer.step(1e-2, model, gradients));
            losses.push(loss.into_scalar());
        });
    }
    Outcome {
        losses,
        weights: weights(&net.expect("put back after each step")),
    }
}

#[test]
fn adapters_train_like_one_device_and_what_is_frozen_makes_no_gradient() {
    let expected = train(&Device::flex().autodiff(), |net| net, |step| step());
    let before = weights(&deterministic(Net {
        up: Adapted::new(FROM, TO, &Device::flex().autodiff()),
        down: Adapted::new(TO, FROM, &Device::flex().autodiff()),
    }));
    for setting in settings() {
        let mesh = setting.builder().build().expect("a mesh");
        let device = mesh.device().autodiff();
        let plan = setting.plan(split()).unit("up").unit("down");
        let mut explanation = Explanation::default();
        let found = train(
            &device,
            |net| net.parallelize_with(&mesh, &plan).expect("a plan"),
            |step| explanation = burn_dist::explain(&device, step).1,
        );
        let what = setting.to_string();
        found.assert_close(&expected, &what);
        // Weight and bias of the base come first in each.
        for frozen in [0, 1, 4, 5] {
            assert_eq!(
                found.weights[frozen].bytes(),
                before[frozen].bytes(),
                "{what}"
            );
        }
        let of_base = |kinds: [&str; 2]| {
            let base = |shape: &[usize]| shape == [FROM, TO] || shape == [TO, FROM];
            let mut all = explanation.collectives.iter();
            all.any(|c| kinds.contains(&c.kind) && base(&c.shape))
        };
        assert!(!of_base(["reduce_scatter", "all_reduce"]), "{explanation}");
        let sharded = ["fsdp", "cp"]
            .iter()
            .any(|axis| setting.axes.contains(axis))
            && setting.strategy != burn_dist::ShardStrategy::Replicate;
        assert_eq!(of_base(["all_gather", ""]), sharded, "{explanation}");
    }
}

#[test]
fn random_starts_are_alike_on_every_mesh() {
    let draw = |axes: &str| {
        let mesh = super::meshes::builder(axes).build().expect("a mesh");
        mesh.device().autodiff().seed(1);
        let x = Tensor::<2>::random([5, 7], Distribution::Default, &mesh.device().autodiff());
        x.into_data()
    };
    assert_eq!(draw("fsdp=2").bytes(), draw("").bytes());
}
