//! Linear layers in float8: what meshes, strategies and recomputation give, what travels, and how well it trains.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::explanation::Explanation;
use burn_dist::optim::{GradientCheck, NonFinite};
use burn_dist::parallel::pipeline;
use burn_dist::{
    ActivationCheckpoint, DeviceMeshBuilder, Float, Float8, Fp8, ParallelizeWith, Plan, Precision,
    Reshard, Scaling, Scope, ShardStrategy,
};

use crate::transformer::run::{BLOCKS, Run, assert_alike, builder, train_wide};
use crate::transformer::{DIM, Net, SEQ, Training, VOCAB, megatron, sequence_parallel};
use crate::weights::deterministic;

/// A scale depends on its own step alone, so that a few steps show what twenty would.
const STEPS: usize = 4;

fn train(mesh: DeviceMeshBuilder, plan: &Plan) -> Run {
    train_wide(mesh, plan, BLOCKS, DIM, STEPS)
}

const SCALINGS: [Scaling; 3] = [Scaling::Tensorwise, Scaling::Rowwise, Scaling::Blockwise128];

fn float8(scaling: Scaling) -> Plan {
    in_float8(Plan::new(), scaling)
}

/// Over bf16.
fn in_float8(plan: Plan, scaling: Scaling) -> Plan {
    let plan = plan.precision(Precision::new(Float::BF16));
    plan.float8(Float8::new(scaling))
}

#[test]
fn sharding_has_the_bits_of_replication() {
    for scaling in SCALINGS {
        for precision in [Float::F32, Float::BF16] {
            let with = || float8(scaling).precision(Precision::new(precision));
            let expected = train(builder("dp=2"), &with());
            assert!(
                expected.losses[STEPS - 1] < 0.98 * expected.losses[0],
                "{:?}",
                expected.losses
            );
            let without = train(builder("dp=2"), &with().float8(None));
            assert_ne!(expected.losses, without.losses, "float8 changes values");
            let off = Float8::new(scaling).gather(false);
            for (what, plan) in [
                ("full", with()),
                ("gathered as before", with().float8(off)),
                ("zero2", with().strategy(ShardStrategy::GradOptim)),
                ("zero1", with().strategy(ShardStrategy::Optim)),
                ("always", with().reshard(Reshard::Always).prefetch(0)),
                ("recomputed", with().checkpoint(ActivationCheckpoint::Full)),
                (
                    "in part",
                    with().checkpoint(ActivationCheckpoint::Selective),
                ),
            ] {
                let run = train(builder("fsdp=2"), &plan);
                assert_alike(
                    &run,
                    &expected,
                    &format!("{scaling} over {precision}, {what}"),
                );
            }
        }
    }
}

/// Scales are of the global tensor, so that meshes differ as they do without float8: by the order of sums. Where a sum
/// is off by one rounding, a value next to a boundary falls to the other side: one of the 16 or 32 terms of a product
/// is off by a unit of e4m3, 1/8 of it at most, or of e5m2, 1/4. That is one term of 16 in one of 32 rows whose losses
/// are averaged: 1/4 / 16 / 32 = 5e-4 of a step's loss, for each value that falls so; a few do in 4 steps.
#[test]
fn every_mesh_trains_alike() {
    for scaling in SCALINGS {
        let expected = train(builder(""), &in_float8(sequence_parallel(), scaling)).losses;
        for axes in ["fsdp=2", "fsdp=2,tp=2", "dp=2,fsdp=2", "tp=2"] {
            for plan in [megatron(), sequence_parallel()] {
                let run = train(builder(axes), &in_float8(plan, scaling));
                for (step, (found, expected)) in run.losses.iter().zip(&expected).enumerate() {
                    let error = ((found - expected) / expected).abs();
                    assert!(
                        error < 2e-2,
                        "{scaling} on `{axes}`, step {step}: {found}, {expected}"
                    );
                }
            }
        }
    }
}

/// The loss after 30 steps.
fn final_loss(plan: &Plan) -> f32 {
    let mesh = builder("fsdp=2").build().expect("a mesh");
    let device = mesh.device().autodiff();
    let net = deterministic(Net::new(BLOCKS, &device));
    let net = net.parallelize_with(&mesh, &plan.clone().unit("blocks"));
    let net = net.expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut last = f32::NAN;
    for step in 0..30 {
        training.step = step;
        let loss = training.loss(&device);
        let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
        training.net = optimizer.step(1e-2, training.net.clone(), gradients);
        last = loss.into_scalar();
    }
    last
}

#[test]
fn it_trains_as_well_as_bf16() {
    let bf16 = final_loss(&Plan::new().precision(Precision::new(Float::BF16)));
    for scaling in SCALINGS {
        let found = final_loss(&float8(scaling));
        let error = ((found - bf16) / bf16).abs();
        assert!(error < 0.01, "{scaling}: {found}, bf16: {bf16}");
    }
}

/// Of a rank that holds all, scales are those of the global tensor; elsewhere each rank has its own, and no call more
/// than without float8.
#[test]
fn scales_of_what_a_rank_holds_take_no_communication() {
    for scaling in SCALINGS {
        let of_rank = Float8::new(scaling).scope(Scope::Rank);
        let plan = || float8(scaling).float8(of_rank.clone());
        let expected = train(builder(""), &float8(scaling));
        assert_alike(
            &train(builder(""), &plan()),
            &expected,
            &scaling.to_string(),
        );
        for axes in ["fsdp=2", "fsdp=2,tp=2"] {
            let plan = in_float8(megatron(), scaling).float8(of_rank.clone());
            let run = train(builder(axes), &plan);
            assert!(
                run.losses[STEPS - 1] < 0.98 * run.losses[0],
                "{:?}",
                run.losses
            );
            let without = train(builder(axes), &plan.float8(None));
            let totals = |run: &Run| format!("{:?}", run.explanation.totals);
            assert_eq!(totals(&run), totals(&without), "{scaling} on `{axes}`");
        }
        let error = final_loss(&plan()) / final_loss(&float8(scaling)) - 1.0;
        assert!(error.abs() < 0.01, "{scaling}: {error}");
    }
}

/// Received by gathers of the weights of blocks.
fn gathered(explanation: &Explanation) -> u64 {
    let moved = explanation.collectives.iter();
    let is_block = |path: &Option<String>| {
        let path = path.as_deref().unwrap_or_default();
        path.starts_with("blocks")
    };
    // What rests in shards: weights, and their scales.
    let rests = |layout: &str| layout.contains('*');
    let moved = moved.filter(|c| {
        c.kind == "all_gather" && c.shape.len() == 2 && rests(&c.from) && is_block(&c.path)
    });
    moved.map(|c| c.bytes).sum()
}

#[test]
fn weights_travel_in_half_the_bytes_of_bf16() {
    let with = |float8: Option<Float8>| {
        let plan = Plan::new().precision(Precision::new(Float::BF16));
        train(builder("fsdp=2"), &plan.float8(float8)).explanation
    };
    let bf16 = with(None);
    let tensorwise = with(Some(Float8::new(Scaling::Tensorwise)));
    assert!(gathered(&bf16) > 0);
    assert_eq!(2 * gathered(&tensorwise), gathered(&bf16), "{tensorwise}");
    let gathers = |explanation: &Explanation| explanation.totals["all_gather"].launches;
    // In the forward of each block, weights start apart from the scales of norms, which are in bf16.
    assert_eq!(gathers(&tensorwise), gathers(&bf16) + BLOCKS as u64);
    // The scales of 7 weights in each of 3 blocks take one reduction.
    let maxima = tensorwise.collectives.iter().filter(|c| c.shape == [21]);
    let maxima: Vec<_> = maxima.map(|c| (c.kind, c.count)).collect();
    assert_eq!(maxima, [("all_reduce", 1)], "{tensorwise}");
    let text = tensorwise.to_string();
    assert!(
        text.contains("float8: 21 of 22 linear layer(s)")
            && text.contains("float8 products run by the reference on the host")
            && text.contains("float8 skips output.weight: output head"),
        "{text}"
    );
}

/// Weights of the wide model are [256, 256] and [256, 512]: of several blocks, which some meshes cut and others do not.
fn wide(axes: &str, plan: &Plan) -> Run {
    train_wide(builder(axes), plan, 2, 256, 3)
}

/// Blocks are quantised where they rest, or after a gather where shards cut them: the bits are the same.
#[test]
fn blocks_have_the_bits_of_replication() {
    let plan = || float8(Scaling::Blockwise128);
    let off = Float8::new(Scaling::Blockwise128).gather(false);
    for (replicated, sharded) in [("dp=2", "fsdp=2"), ("dp=3", "fsdp=3")] {
        let expected = wide(replicated, &plan());
        let losses = &expected.losses;
        assert!(losses[2] < losses[0], "{losses:?}");
        for (what, plan) in [
            ("full", plan()),
            ("gathered as before", plan().float8(off.clone())),
            ("recomputed", plan().checkpoint(ActivationCheckpoint::Full)),
            ("always", plan().reshard(Reshard::Always).prefetch(0)),
        ] {
            let run = wide(sharded, &plan);
            assert_alike(&run, &expected, &format!("{what} on `{sharded}`"));
            let text = run.explanation.to_string();
            assert!(text.contains("float8: 14 of 15 linear layer(s)"), "{text}");
            let is_cut = sharded == "fsdp=3" && what != "gathered as before";
            assert_eq!(text.contains("before the cast: blocks of 128"), is_cut);
        }
    }
}

/// Half the bytes of bf16, and the scales: one in f32 for 16384 weights.
#[test]
fn blocks_travel_in_half_the_bytes_of_bf16() {
    let plan = Plan::new().precision(Precision::new(Float::BF16));
    let bf16 = wide("fsdp=2", &plan).explanation;
    let blockwise = plan.float8(Float8::new(Scaling::Blockwise128));
    let blockwise = wide("fsdp=2", &blockwise).explanation;
    let bytes = gathered(&bf16);
    assert!(bytes > 0);
    let scales = bytes / 2 / 16384 * 4;
    assert_eq!(gathered(&blockwise), bytes / 2 + scales, "{blockwise}");
    let reductions = |explanation: &Explanation| explanation.totals["all_reduce"].launches;
    assert_eq!(reductions(&blockwise), reductions(&bf16), "{blockwise}");
}

/// Over f32, so that a difference is one of scales and not of sums: those in another order are off by 2^-24 of
/// themselves, which puts one of 2^19 or so values in 8 bits to its other side: of 2^19 in a step, about one. It is off
/// by 1/8 of one of 256 terms with signs of their own, in one of 32 rows: 1/8 / 256^0.5 / 32 = 2.4e-4 of a row's
/// logits, or 7e-5 of a loss of 3.4. In three steps with one each, 2e-4. A block with another scale would be off in all
/// of its values.
#[test]
fn blocks_train_alike_on_every_mesh() {
    let blockwise = |plan: Plan| plan.float8(Float8::new(Scaling::Blockwise128));
    let expected = wide("", &blockwise(sequence_parallel())).losses;
    let mut largest = 0f32;
    for axes in ["fsdp=2", "tp=2", "fsdp=2,tp=2"] {
        for plan in [megatron(), sequence_parallel()] {
            let run = wide(axes, &blockwise(plan));
            for (step, (found, expected)) in run.losses.iter().zip(&expected).enumerate() {
                let error = ((found - expected) / expected).abs();
                largest = largest.max(error);
                assert!(
                    error < 2.5e-4,
                    "`{axes}`, step {step}: {found}, {expected}: {error}"
                );
            }
        }
    }
    assert!(largest > 0.0, "sums have another order");
}

/// Two layers, of which the first computes in float8.
#[derive(Module, Debug)]
struct Pair {
    first: Linear,
    second: Linear,
}

const SIZE: usize = 16;

/// A forward of two layers: the first doubles what it is given, the second gives it back.
fn doubled(axes: &str, plan: &Plan, x: Vec<f32>) -> Vec<f32> {
    doubled_on(builder(axes), plan, x)
}

fn doubled_on(mesh: DeviceMeshBuilder, plan: &Plan, x: Vec<f32>) -> Vec<f32> {
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device().autodiff();
    let size = x.len() / 8;
    let linear = || LinearConfig::new(size, size).with_bias(false).init(&device);
    let (mut first, mut second) = (linear(), linear());
    let eye = Tensor::<2>::eye(size, &device);
    first.weight = first.weight.map(|_| eye.clone() * 2.0);
    second.weight = second.weight.map(|_| eye);
    let pair = Pair { first, second };
    let pair = pair.parallelize_with(&mesh, plan).expect("a plan");
    let x = Tensor::<2>::from_data(TensorData::new(x, [8, size]), &device);
    let y = pair.second.forward(pair.first.forward(x));
    y.into_data().try_to_vec().expect("floats")
}

fn numbers() -> Vec<f32> {
    numbers_of(SIZE)
}

/// Eight rows of so many.
fn numbers_of(size: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + 11) % 97) as f32 / 10.0 - 3.0;
    (0..8 * size).map(number).collect()
}

/// With scales of what a rank holds, results would differ: the largest values are on one rank.
#[test]
fn scales_are_those_of_the_global_tensor() {
    for scaling in SCALINGS {
        let plan = || Plan::new().float8(Float8::new(scaling));
        let expected = doubled("", &plan(), numbers());
        assert_ne!(
            expected,
            numbers().iter().map(|x| 2.0 * x).collect::<Vec<_>>()
        );
        let (colwise, rowwise) = (plan().colwise("first"), plan().rowwise("first"));
        for axes in [
            "dp=2",
            "fsdp=2",
            "tp=2",
            "fsdp=2,tp=2",
            "dp=3",
            "fsdp=3",
            "dp=2,fsdp=2,tp=2",
        ] {
            for plan in [plan(), colwise.clone(), rowwise.clone()] {
                assert_eq!(
                    doubled(axes, &plan, numbers()),
                    expected,
                    "{scaling} on `{axes}`"
                );
            }
        }
    }
}

#[test]
fn random_layouts_change_no_scale() {
    for scaling in SCALINGS {
        let plan = Plan::new().float8(Float8::new(scaling));
        let expected = doubled("", &plan, numbers());
        for axes in ["dp=2", "tp=3", "fsdp=2,tp=2", "dp=2,fsdp=2,tp=2"] {
            for seed in 0..6 {
                let found = doubled_on(builder(axes).fuzz_layouts(seed), &plan, numbers());
                assert_eq!(found, expected, "{scaling} on `{axes}`, seed {seed}");
            }
        }
    }
}

/// Of 384 inputs, three tiles: whatever cuts them is undone before they are quantised.
#[test]
fn random_layouts_cut_no_block() {
    let plan = || Plan::new().float8(Float8::new(Scaling::Blockwise128));
    let expected = doubled("", &plan(), numbers_of(384));
    for axes in ["dp=2", "tp=3", "fsdp=3", "fsdp=2,tp=2", "tp=2,fsdp=3"] {
        for plan in [plan(), plan().colwise("first"), plan().rowwise("first")] {
            let found = doubled(axes, &plan, numbers_of(384));
            assert!(found == expected, "`{axes}`");
            for seed in 0..6 {
                let mesh = builder(axes).fuzz_layouts(seed);
                let found = doubled_on(mesh, &plan, numbers_of(384));
                assert!(found == expected, "`{axes}`, seed {seed}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = numbers();
        x[3 * SIZE + 5] = bad;
        for axes in ["", "fsdp=2", "tp=2"] {
            for scaling in SCALINGS {
                let plan = Plan::new().float8(Float8::new(scaling)).rowwise("first");
                let found = doubled(axes, &plan, x.clone());
                let expected = |row: usize| scaling == Scaling::Tensorwise || row == 3;
                for (index, y) in found.iter().enumerate() {
                    let row = index / SIZE;
                    assert_eq!(
                        y.is_nan(),
                        expected(row),
                        "{bad} in {scaling} on `{axes}`, row {row}"
                    );
                }
            }
        }
    }
}

/// An infinity in what a layer is given makes the gradient of its weight no number, and the check of gradients names
/// it.
#[test]
fn the_layer_of_what_is_not_finite_is_named() {
    for axes in ["", "fsdp=2", "tp=2"] {
        for scaling in SCALINGS {
            let mesh = builder(axes).build().expect("a mesh");
            let device = mesh.device().autodiff();
            let linear = || LinearConfig::new(SIZE, SIZE).init(&device);
            let (first, second) = (linear(), linear());
            let plan = Plan::new().float8(Float8::new(scaling)).rowwise("first");
            let pair = Pair { first, second }.parallelize_with(&mesh, &plan);
            let pair = pair.expect("a plan");
            let check = |x: Vec<f32>| {
                let x = Tensor::<2>::from_data(TensorData::new(x, [8, SIZE]), &device);
                let loss = pair.second.forward(pair.first.forward(x)).sum();
                let gradients = GradientsParams::from_grads(loss.backward(), &pair);
                GradientCheck::new(NonFinite::Stop).check(&pair, gradients)
            };
            let what = format!("{scaling} on `{axes}`");
            assert!(check(numbers()).is_ok(), "{what}");
            let mut x = numbers();
            x[3 * SIZE + 5] = f32::INFINITY;
            let error = check(x).expect_err(&what).to_string();
            let named = error.starts_with("the gradient of first.weight has ");
            assert!(named, "{what}: {error}");
        }
    }
}

#[test]
fn formats_are_those_that_are_asked_for() {
    let plan = |format| Plan::new().float8(Float8::new(Scaling::Tensorwise).forward(format));
    let exact: Vec<f32> = numbers().iter().map(|x| 2.0 * x).collect();
    for (format, unit) in [(Fp8::E4M3, 8.0), (Fp8::E5M2, 4.0)] {
        let found = doubled("fsdp=2", &plan(format), numbers());
        let mut largest: f32 = 0.0;
        for (found, exact) in found.iter().zip(&exact) {
            largest = largest.max((found - exact).abs() / exact.abs().max(0.1));
        }
        assert!(
            largest <= 0.5 / unit * 1.001 && largest > 0.2 / unit,
            "{format}: {largest}"
        );
    }
}

fn tokens(step: usize, device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i32> = (0..8 * SEQ)
        .map(|i| ((i * 7 + step * 13 + 3) % VOCAB) as i32)
        .collect();
    Tensor::from_data(TensorData::new(tokens, [8, SEQ]), device)
}

/// Stages of a pipeline give the bits of accumulation: what is quantised is a microbatch's.
#[test]
fn a_pipeline_is_accumulation() {
    let run = |axes: &str, scaling: Scaling| -> Run {
        let plan = float8(scaling)
            .first("embedding")
            .stages("blocks")
            .unit("blocks");
        let plan = plan.last("norm").last("output");
        let mesh = builder(axes).build().expect("a mesh");
        let device = mesh.device().autodiff();
        let net = deterministic(Net::new(4, &device));
        let mut net = net.parallelize_with(&mesh, &plan).expect("a plan");
        let mut optimizer = AdamWConfig::new().init();
        let mut losses = Vec::new();
        for step in 0..10 {
            let x = tokens(step, &device);
            let loss = |net: &Net, x: Tensor<2, Int>| {
                let [rows, seq] = x.dims();
                let logits = net.forward(x.clone()).reshape([rows * seq, VOCAB]);
                let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
                cross_entropy.forward(logits, x.reshape([rows * seq]))
            };
            let (loss, gradients): (Tensor<1>, GradientsParams) =
                pipeline::forward_backward(&net, x, 4, loss).expect("rows enough");
            net = optimizer.step(1e-2, net, gradients);
            losses.push(loss.into_scalar());
        }
        Run {
            losses,
            weights: crate::transformer::run::weights(&net),
            explanation: Explanation::default(),
        }
    };
    for scaling in SCALINGS {
        let expected = run("", scaling);
        assert!(
            expected.losses[9] < 0.95 * expected.losses[0],
            "{:?}",
            expected.losses
        );
        assert_alike(
            &run("pp=2", scaling),
            &expected,
            &format!("{scaling} in stages"),
        );
    }
}
