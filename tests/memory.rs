//! Memory: what the plans predict is what the ranks hold.

use burn::backend::{Autodiff, Flex};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::ElementConversion;
use burn::tensor::backend::Backend;
use burn_dist::plan::explain::Explanation;
use burn_dist::plan::memory::MemoryClass;
use burn_dist::run::RankStats;
use burn_dist::{
    Checkpoint, DeviceMesh, DeviceMeshBuilder, Dist, MeshBackend, ParallelizeWith, Plan, Reshard,
    ShardStrategy,
};

macro_rules! check { ($e:expr, $($t:tt)*) => { if !$e { eprintln!("BAD {}", format!($($t)*).lines().next().unwrap_or("")); } } }

mod transformer;
use transformer::{Net, Training, megatron, sequence_parallel};

type B = Autodiff<Dist<Flex>>;

const STEPS: usize = 3;
const BLOCKS: usize = 3;

fn builder(axes: &str) -> DeviceMeshBuilder {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .account_memory(true)
}

/// What the ranks report after some steps, and what the last one does.
fn train(mesh: DeviceMeshBuilder, plan: &Plan) -> (Vec<RankStats>, Explanation) {
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device();
    B::seed(&device, 5);
    let plan = plan.clone().unit("blocks");
    let net = Net::<B>::new(BLOCKS, &device)
        .parallelize_with(&mesh, &plan)
        .expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut last = None;
    for step in 0..STEPS {
        training.step = step;
        let (loss, explanation) = burn_dist::explain::<B, f32>(&device, || {
            let loss = training.loss(&device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            training.net = optimizer.step(1e-2, training.net.clone(), gradients);
            loss.into_scalar().elem()
        });
        assert!(loss.is_finite());
        last = Some(explanation);
    }
    let ranks = B::report(&device).ranks;
    (ranks, last.expect("there were steps"))
}

/// Compares the peaks, by total and by class.
fn assert_predicted(what: &str, ranks: &[RankStats], plan: &Explanation) {
    for rank in ranks {
        let accounted = rank.accounted.as_ref().expect("accounted for");
        let planned = &plan.memory[rank.rank as usize];
        let (predicted, found) = (rank.predicted_peak_bytes, rank.peak_bytes);
        let planned_line = &plan.timelines[rank.rank as usize].tasks;
        let line = &accounted.timeline.tasks;
        let apart = planned_line
            .iter()
            .zip(line)
            .position(|(a, b)| a.total() != b.total());
        eprintln!(
            "{what}, rank {}: predicted {predicted} at {}, accounted {found} at {} ({} and {} tasks; apart at {apart:?}: {:?} {:?})",
            rank.rank,
            planned.peak_cause,
            accounted.peak_cause,
            planned_line.len(),
            line.len(),
            apart.map(|at| planned_line[at]),
            apart.map(|at| line[at]),
        );
        check!(
            predicted.abs_diff(found) * 100 <= predicted,
            "{what}, rank {}: predicted {predicted}, accounted {found}\n{plan}",
            rank.rank
        );
        for class in MemoryClass::ALL {
            let planned = planned.peak_by_class.get(&class).copied().unwrap_or(0);
            let found = accounted.peak.get(class);
            check!(
                planned.abs_diff(found) * 100 <= predicted,
                "{what}, rank {}: {} predicted {planned}, accounted {found}\n{plan}",
                rank.rank,
                class.name()
            );
        }
    }
}

#[test]
fn every_strategy_holds_what_its_plan_says() {
    let plain = Plan::new();
    for (axes, plan) in [
        ("", &plain),
        ("dp=2", &plain),
        ("fsdp=2", &plain),
        ("fsdp=3", &plain),
        ("dp=2,fsdp=2", &plain),
        ("tp=2", &megatron()),
        ("fsdp=2,tp=2", &megatron()),
        ("fsdp=2,tp=2", &sequence_parallel()),
    ] {
        let (ranks, explanation) = train(builder(axes), plan);
        assert_predicted(axes, &ranks, &explanation);
    }
    for axes in ["fsdp=2", "fsdp=2,tp=2"] {
        for strategy in [ShardStrategy::GradOptim, ShardStrategy::Optim] {
            let mesh = builder(axes).strategy("fsdp", strategy);
            let (ranks, explanation) = train(mesh, &megatron());
            assert_predicted(&format!("{axes} {strategy:?}"), &ranks, &explanation);
        }
    }
}

#[test]
fn every_reshard_policy_holds_what_its_plan_says() {
    for reshard in ["always", "last", "every=2", "never"] {
        let reshard: Reshard = reshard.parse().expect("a policy");
        for prefetch in [0, 2] {
            let mesh = builder("fsdp=2").reshard(reshard).prefetch(prefetch);
            let (ranks, explanation) = train(mesh, &Plan::new());
            assert_predicted(&format!("{reshard}, {prefetch} ahead"), &ranks, &explanation);
        }
    }
}

#[test]
fn every_checkpoint_policy_holds_what_its_plan_says() {
    for axes in ["", "fsdp=2", "fsdp=2,tp=2"] {
        for policy in ["full", "every=2", "selective", "bytes=4000"] {
            let policy: Checkpoint = policy.parse().expect("a policy");
            let (ranks, explanation) = train(builder(axes).checkpoint(policy), &megatron());
            assert_predicted(&format!("`{axes}` {policy}"), &ranks, &explanation);
        }
    }
}
