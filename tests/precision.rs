//! Mixed precision: what is computed in 16 bits, what is not, and what travels.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::module::linear;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_dist::optim::LossScaler;
use burn_dist::{Float, ParallelizeWith, Plan, Precision, Reshard, ShardStrategy};

use crate::transformer;
use crate::transformer::run::{Run, STEPS, assert_alike, builder, train, weights};
use crate::transformer::{megatron, sequence_parallel};
use crate::weights::deterministic;

/// Two linear maps.
#[derive(Module, Debug)]
struct Pair {
    first: Linear,
    second: Linear,
}

impl Pair {
    fn new(device: &Device) -> Self {
        // A mesh adds up the gradient of a bias in f32, and a user's casts in 16 bits.
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        deterministic(Self {
            first: linear(6, 10),
            second: linear(10, 3),
        })
    }

    /// Squared error, with the casts a user would have written; `None` as if there were no such thing.
    fn loss(&self, step: usize, low: Option<FloatDType>, device: &Device) -> Tensor<1> {
        let data = |columns: usize| {
            let values: Vec<f32> = (0..8 * columns)
                .map(|i| ((i * 31 + step * 17) % 23) as f32 / 23.0 - 0.4)
                .collect();
            Tensor::<2>::from_data(TensorData::new(values, [8, columns]), device)
        };
        let (x, y) = (data(6), data(3));
        let found = match low {
            None => self.second.forward(relu(self.first.forward(x))),
            Some(low) => {
                let of =
                    |layer: &Linear, x: Tensor<2>| linear(x, layer.weight.val().cast(low), None);
                let hidden = relu(of(&self.first, x.cast(low)));
                of(&self.second, hidden).cast(FloatDType::F32)
            }
        };
        (found - y).powf_scalar(2.0).mean()
    }
}

fn train_pair(
    mut model: Pair,
    low: Option<FloatDType>,
    device: &Device,
) -> (Vec<f32>, Vec<TensorData>) {
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = model.loss(step, low, device);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
        losses.push(loss.into_scalar());
    }
    (losses, weights(&model))
}

#[test]
fn a_policy_is_the_casts_a_user_would_write() {
    for (float, low) in [
        (Float::BF16, FloatDType::BF16),
        (Float::F16, FloatDType::F16),
    ] {
        let device = Device::flex().autodiff();
        let expected = train_pair(Pair::new(&device), Some(low), &device);
        let full = train_pair(Pair::new(&device), None, &device);
        assert_ne!(expected.0, full.0, "16 bits can be seen");
        let mesh = builder("").build().expect("a mesh");
        let model = Pair::new(&mesh.device().autodiff())
            .parallelize_with(&mesh, &Plan::new().precision(Precision::new(float)))
            .expect("a plan");
        let found = train_pair(model, None, &mesh.device().autodiff());
        assert_eq!(found.0, expected.0, "losses in {float}");
        for (found, expected) in found.1.iter().zip(&expected.1) {
            assert_eq!(found.dtype(), DType::F32, "master weights");
            assert!(found.bytes() == expected.bytes(), "weights in {float}");
        }
    }
}

#[test]
fn strategies_in_mixed_precision_have_the_bits_of_replication() {
    let in_f32 = train(builder("fsdp=2"), &Plan::new());
    for reduce in [Float::F32, Float::BF16] {
        let precision = Precision::new(Float::BF16).reduce(reduce);
        let with = || Plan::new().precision(precision);
        let expected = train(builder("dp=2"), &with());
        assert!(
            expected.losses[STEPS - 1] < 0.95 * expected.losses[0],
            "{:?}",
            expected.losses
        );
        assert_ne!(expected.losses, in_f32.losses);
        for strategy in [
            ShardStrategy::Full,
            ShardStrategy::GradOptim,
            ShardStrategy::Optim,
        ] {
            let run = train(builder("fsdp=2"), &with().strategy(strategy));
            assert_alike(&run, &expected, &format!("{strategy} reduced in {reduce}"));
        }
        let always = with().reshard(Reshard::Always).prefetch(0);
        let run = train(builder("fsdp=2"), &always);
        assert_alike(&run, &expected, "always, no prefetch");
        let kept = with().checkpoint("full".parse().expect("a policy"));
        let run = train(builder("fsdp=2"), &kept);
        assert_alike(&run, &expected, "checkpointed");
    }
}

#[test]
fn every_mesh_trains_alike_in_16_bits() {
    let expected = train(builder(""), &sequence_parallel()).losses;
    for axes in ["", "fsdp=4", "tp=2", "fsdp=2,tp=2", "dp=2,fsdp=2"] {
        for plan in [megatron(), sequence_parallel()] {
            let precision = Precision::new(Float::BF16);
            let run = train(builder(axes), &plan.precision(precision));
            for (step, (found, expected)) in run.losses.iter().zip(&expected).enumerate() {
                let error = ((found - expected) / expected).abs();
                // bf16 has 8 bits: each product is off by up to 1 / 256.
                assert!(
                    error < 2e-2,
                    "mesh `{axes}`, step {step}: {found}, {expected}"
                );
            }
        }
    }
}

#[test]
fn parameters_and_gradients_travel_in_half_the_bytes() {
    let bytes = |run: &Run, kind: &str| {
        let moved = run.explanation.collectives.iter();
        // Norms are computed in f32, and so are their scales.
        let moved = moved.filter(|c| c.kind == kind && c.shape.len() == 2);
        moved.map(|c| c.bytes).sum::<u64>()
    };
    // One strategy in which every parameter is gathered as often, whatever its type.
    let with = |precision: Option<Precision>| {
        let plan = Plan::new().reshard(Reshard::Never);
        let plan = match precision {
            Some(precision) => plan.precision(precision),
            None => plan,
        };
        train(builder("fsdp=2"), &plan)
    };
    let full = with(None);
    let mixed = with(Some(Precision::new(Float::BF16)));
    let low = with(Some(Precision::new(Float::BF16).reduce(Float::BF16)));
    assert_eq!(2 * bytes(&mixed, "all_gather"), bytes(&full, "all_gather"));
    assert_eq!(
        bytes(&mixed, "reduce_scatter"),
        bytes(&full, "reduce_scatter")
    );
    // The gradient of the embedding sums rows, and sums are in f32.
    let embedding = (transformer::VOCAB * transformer::DIM * 4 / 2) as u64;
    assert_eq!(
        2 * (bytes(&low, "reduce_scatter") - embedding),
        bytes(&full, "reduce_scatter") - embedding
    );
    assert_eq!(
        mixed.explanation.totals["all_gather"].launches,
        full.explanation.totals["all_gather"].launches,
        "units are gathered together as before"
    );
}

#[test]
fn f16_needs_its_loss_scaled() {
    let mesh = builder("fsdp=2").build().expect("a mesh");
    let device = mesh.device().autodiff();
    let mut model = Pair::new(&device)
        .parallelize_with(&mesh, &Plan::new().precision(Precision::new(Float::F16)))
        .expect("a plan");
    // Gradients that small are zero in f16.
    let small = |model: &Pair| model.loss(0, None, &device) * 1e-7;
    let largest = |model: &Pair, gradients: &GradientsParams| -> f32 {
        let weight = gradients.get::<2>(model.first.weight.id);
        weight.expect("a gradient").abs().max().into_scalar()
    };
    let gradients = GradientsParams::from_grads(small(&model).backward(), &model);
    assert_eq!(largest(&model, &gradients), 0.0);
    let mut scaler = LossScaler::new(65536.0);
    let gradients = scaler.scale(small(&model)).backward();
    let gradients = GradientsParams::from_grads(gradients, &model);
    let gradients = scaler.unscale(&model, gradients).expect("they are finite");
    let found = largest(&model, &gradients);
    assert!(found > 1e-9 && found < 1e-6, "{found}");

    // A scale that is too large is halved, and the step left out, until gradients are finite again.
    let mut scaler = LossScaler::new(2f32.powi(24));
    let mut optimizer = AdamWConfig::new().init();
    let (mut skipped, mut losses) = (0, Vec::new());
    for _ in 0..STEPS + 10 {
        let loss = model.loss(0, None, &device);
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(scaler.scale(loss).backward(), &model);
        match scaler.unscale(&model, gradients) {
            Some(gradients) => model = optimizer.step(1e-2, model, gradients),
            None => skipped += 1,
        }
    }
    assert!((1..12).contains(&skipped), "{skipped}");
    assert!(losses.last() < losses.first());
    assert_eq!(scaler.factor(), 2f32.powi(24 - skipped));
}
