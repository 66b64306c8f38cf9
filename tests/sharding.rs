//! Strategies of sharding change memory and traffic, never a bit.

use std::collections::BTreeMap;

use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, TensorData, Tolerance};
use burn_dist::optim::{Ema, clip_grad_norm, clip_grad_value};
use burn_dist::{ParallelizeWith, Plan, Reshard, ShardStrategy, UnitPolicy};

use crate::transformer::run::{BLOCKS, Run, STEPS, assert_alike, builder, train, weights};
use crate::transformer::{DIM, Net, Training, megatron, sequence_parallel};
use crate::weights::deterministic;

#[test]
fn every_strategy_has_the_bits_of_replication() {
    for ranks in [2, 3] {
        let expected = train(builder(&format!("dp={ranks}")), &Plan::new());
        assert!(expected.losses[STEPS - 1] < 0.95 * expected.losses[0]);
        let sharded = || builder(&format!("fsdp={ranks}"));
        for strategy in [
            ShardStrategy::Full,
            ShardStrategy::GradOptim,
            ShardStrategy::Optim,
            ShardStrategy::Replicate,
        ] {
            let run = train(sharded(), &Plan::new().strategy(strategy));
            assert_alike(&run, &expected, &format!("{strategy:?} on {ranks} ranks"));
        }
        for reshard in ["always", "every=2", "never"] {
            let reshard: Reshard = reshard.parse().expect("a policy");
            for prefetch in [0, 1, 3] {
                let run = train(sharded(), &Plan::new().reshard(reshard).prefetch(prefetch));
                let what = format!("{reshard}, {prefetch} ahead, on {ranks} ranks");
                assert_alike(&run, &expected, &what);
            }
        }
    }
}

#[test]
fn strategies_compose_with_tensor_and_sequence_parallel() {
    for plan in [megatron(), sequence_parallel()] {
        let full = train(builder("fsdp=2,tp=2"), &plan);
        for strategy in [ShardStrategy::GradOptim, ShardStrategy::Optim] {
            let run = train(builder("fsdp=2,tp=2"), &plan.clone().strategy(strategy));
            assert_alike(&run, &full, &format!("{strategy:?}"));
        }
        let run = train(
            builder("fsdp=2,tp=2"),
            &plan.clone().reshard(Reshard::Always).prefetch(0),
        );
        assert_alike(&run, &full, "no prefetch");
    }
}

/// Bytes of the collectives of the last step for the weights of blocks whose shape nothing else has, by kind.
fn traffic(run: &Run) -> BTreeMap<&'static str, u64> {
    let mut traffic = BTreeMap::new();
    for collective in &run.explanation.collectives {
        let path = collective.path.as_deref().unwrap_or_default();
        let shapes = [vec![DIM, DIM], vec![DIM, 2 * DIM]];
        if path.starts_with("blocks.") && shapes.contains(&collective.shape) {
            *traffic.entry(collective.kind).or_default() += collective.bytes;
        }
    }
    traffic
}

#[test]
fn a_shard_axis_that_replicates_is_ddp() {
    let expected = train(builder("dp=2"), &Plan::new());
    let run = train(
        builder("fsdp=2"),
        &Plan::new().strategy_over("fsdp", ShardStrategy::Replicate),
    );
    assert_alike(&run, &expected, "ddp over fsdp");
    let (found, expected) = (&run.explanation, &expected.explanation);
    assert_eq!(found.totals, expected.totals, "{found}");
    assert_eq!(found.memory[0].end_bytes, expected.memory[0].end_bytes);
}

#[test]
fn a_unit_may_have_a_strategy_of_its_own() {
    let expected = train(builder("fsdp=2"), &Plan::new());
    let mesh = || builder("fsdp=2");
    let always = || Plan::new().reshard(Reshard::Always);
    let own = |strategy| UnitPolicy::new().strategy(strategy);
    let full = train(mesh(), &always());
    for strategy in ShardStrategy::ALL {
        let run = train(mesh(), &always().unit_policy("blocks.1", own(strategy)));
        assert_alike(&run, &expected, &format!("one block under {strategy}"));
        let other = traffic(&full);
        let found = traffic(&run);
        // Two of three blocks are as before.
        let third = |kind: &str| (other[kind] / 3, found[kind] - 2 * other[kind] / 3);
        let (gathers, gathered) = third("all_gather");
        let (scatters, scattered) = third("reduce_scatter");
        let text = &run.explanation;
        match strategy {
            ShardStrategy::Full => assert_eq!((gathered, scattered), (gathers, scatters), "{text}"),
            ShardStrategy::GradOptim | ShardStrategy::Optim => {
                assert_eq!((gathered, scattered), (gathers / 2, scatters), "{text}");
            }
            ShardStrategy::Replicate => {
                assert_eq!((gathered, scattered), (0, 0), "{text}");
                // A sum over two ranks receives what scattering and gathering it would.
                assert_eq!(found["all_reduce"], 2 * scatters, "{text}");
            }
        }
        // The other way round: one block under FSDP of a model under another strategy.
        let plan = always()
            .strategy(strategy)
            .unit_policy("blocks.1", own(ShardStrategy::Full));
        let run = train(mesh(), &plan);
        assert_alike(
            &run,
            &expected,
            &format!("one block under fsdp, not {strategy}"),
        );
        if strategy == ShardStrategy::Replicate {
            let found = traffic(&run);
            assert_eq!(found["all_gather"], gathers, "{}", run.explanation);
            assert_eq!(found["reduce_scatter"], scatters, "{}", run.explanation);
        }
    }
}

#[test]
fn what_is_skipped_stays_whole() {
    let bytes = |plan: Plan| train(builder("fsdp=2"), &plan).explanation.memory[0].end_bytes;
    let own = || UnitPolicy::new().strategy(ShardStrategy::Replicate);
    let ddp = Plan::new()
        .unit_policy("", own())
        .unit_policy("blocks", own());
    let replicated = train(builder("dp=2"), &Plan::new()).explanation.memory[0].end_bytes;
    assert_eq!(bytes(ddp), replicated);
    let skipped = Plan::new()
        .skip("embedding")
        .skip("blocks")
        .skip("norm")
        .skip("output");
    assert_eq!(bytes(skipped), replicated);
}

#[test]
fn a_unit_communicates_three_times_a_step() {
    // The blocks, and what is left to the root: embedding, last norm, output. Gathered, gathered again, reduced.
    let always = train(
        builder("fsdp=2"),
        &Plan::new().unit("").reshard(Reshard::Always),
    );
    let totals = &always.explanation.totals;
    let (gathers, scatters) = (totals["all_gather"], totals["reduce_scatter"]);
    let parameters = 9 * BLOCKS as u64 + 3;
    assert_eq!(scatters.count, parameters, "{}", always.explanation);
    // One number is not cut: the loss.
    assert_eq!(totals["all_reduce"].count, 1, "{}", always.explanation);
    // The root is visited first, then between forward and backward, and last.
    assert!(
        gathers.launches <= 2 * BLOCKS as u64 + 3,
        "{}",
        always.explanation
    );
    assert!(
        scatters.launches <= BLOCKS as u64 + 3,
        "{}",
        always.explanation
    );
    let never = train(
        builder("fsdp=2"),
        &Plan::new().unit("").reshard(Reshard::Never),
    );
    let kept = never.explanation.totals["all_gather"];
    assert_eq!(kept.count, parameters, "{}", never.explanation);
    assert!(kept.launches <= BLOCKS as u64 + 2, "{}", never.explanation);
}

#[test]
fn hybrid_sharding_reduces_shards_over_the_replicas_once() {
    let run = train(builder("dp=2,fsdp=2"), &Plan::new());
    let explanation = &run.explanation;
    let bytes = |axes: &str, kind: &str| -> u64 {
        let found = explanation.collectives.iter();
        found
            .filter(|c| c.axes == axes && c.kind == kind && c.shape != [1])
            .map(|c| c.bytes)
            .sum()
    };
    let scattered = bytes("fsdp", "reduce_scatter");
    // Over two ranks, scattering a tensor receives half of it, and reducing that half over two replicas all of it.
    assert_eq!(bytes("dp", "all_reduce"), scattered, "{explanation}");
}

#[test]
fn hybrid_sharding_has_the_bits_of_replication() {
    for axes in ["dp=2,fsdp=2", "fsdp=2,dp=2", "dp=3,fsdp=2", "dp=2,fsdp=3"] {
        let ddp = Plan::new().strategy(ShardStrategy::Replicate);
        let expected = train(builder(axes), &ddp);
        for strategy in [ShardStrategy::Full, ShardStrategy::Optim] {
            let run = train(builder(axes), &Plan::new().strategy(strategy));
            assert_alike(&run, &expected, &format!("{strategy} on {axes}"));
        }
    }
}

#[test]
fn strategies_are_for_shard_axes() {
    let placed = |axes: &str, of: &str| {
        let mesh = builder(axes).build().expect("a mesh");
        let plan = Plan::new().strategy_over(of, ShardStrategy::Optim);
        let own = UnitPolicy::new().strategy_over(of, ShardStrategy::Optim);
        let of_unit = Plan::new().unit_policy("blocks.*", own);
        [plan, of_unit].map(|plan| {
            let net = Net::new(2, &mesh.device().autodiff()).parallelize_with(&mesh, &plan);
            net.map(|_| ()).map_err(|error| error.to_string())
        })
    };
    for (text, who) in placed("dp=2", "dp")
        .into_iter()
        .zip(["the policy of the model: ", "unit_policy(\"blocks.*\"): "])
    {
        let text = text.expect_err("dp replicates");
        assert!(text.starts_with(who), "{text}");
        assert!(text.contains("`dp`") && text.contains("fsdp"), "{text}");
    }
    for (axes, of) in [("fsdp=2", "tp"), ("dp=2", "fsdp")] {
        for text in placed(axes, of) {
            let text = text.expect_err("there is no such axis");
            assert!(text.contains(&format!("no axis {of}")), "{text}");
        }
    }
}

/// Losses, norms of the gradients, and the averaged weights of a run of two microbatches a step, clipped.
fn clipped(
    device: &Device,
    place: impl FnOnce(Net) -> Net,
) -> (Vec<f64>, Vec<f64>, Vec<TensorData>) {
    let net = place(deterministic(Net::new(2, device)));
    let mut training = Training { net, step: 0 };
    let mut ema = Ema::new(&training.net, 0.8);
    let mut optimizer = AdamWConfig::new().init();
    let mut accumulator = GradientsAccumulator::new();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..6 {
        for microbatch in 0..2 {
            training.step = 2 * step + microbatch;
            let loss = training.loss(device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            accumulator.accumulate(&training.net, gradients);
            losses.push(loss.into_scalar());
        }
        let (gradients, norm) = clip_grad_norm(&training.net, accumulator.grads(), 0.5);
        let gradients = clip_grad_value(&training.net, gradients, 0.05);
        norms.push(norm.into_scalar());
        training.net = optimizer.step(1e-2, training.net, gradients);
        ema.update(&training.net);
    }
    (losses, norms, weights(ema.model()))
}

#[test]
fn clipping_accumulation_and_averages_are_those_of_one_device() {
    let expected = clipped(&Device::flex().autodiff(), |net| net);
    assert!(
        expected.1.iter().any(|norm| *norm > 0.5),
        "something is clipped: {:?}",
        expected.1
    );
    for axes in [
        "",
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "tp=2",
        "fsdp=2,tp=2",
        "dp=2,fsdp=2",
    ] {
        let mesh = builder(axes).build().expect("a mesh");
        let found = clipped(&mesh.device().autodiff(), |net| {
            net.parallelize_with(&mesh, &sequence_parallel())
                .expect("a plan")
        });
        for (what, found, expected) in [
            ("loss", &found.0, &expected.0),
            ("norm", &found.1, &expected.1),
        ] {
            for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                let error = ((found - expected) / expected).abs();
                assert!(
                    error < 1e-4,
                    "mesh `{axes}`, {what} {step}: {found}, {expected}"
                );
            }
        }
        for (found, expected) in found.2.iter().zip(&expected.2) {
            found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-3, 1e-4));
        }
    }
}

#[test]
fn averages_rest_in_pieces() {
    let mesh = builder("fsdp=4").build().expect("a mesh");
    let device = mesh.device().autodiff();
    let net = Net::new(1, &device)
        .parallelize_with(&mesh, &Plan::new())
        .expect("a plan");
    let mut ema = Ema::new(&net, 0.9);
    let (_, explanation) = burn_dist::explain(&device, || ema.update(&net));
    assert!(explanation.collectives.is_empty(), "{explanation}");
}
