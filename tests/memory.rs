//! Memory: what the plans predict is what the ranks hold.

use burn::optim::{AdamWConfig, GradientsParams};
use burn_dist::explanation::Explanation;
use burn_dist::explanation::{ClassBytes, MemoryClass};
use burn_dist::report::RankStats;
use burn_dist::{
    ActivationCheckpoint, AsyncTp, DeviceMesh, DeviceMeshBuilder, Float, Float8, OnMesh,
    Parallelize, ParallelizeWith, Plan, Precision, Regions, Reshard, Scaling, ShardStrategy,
};

use crate::llama::{self, RandomTokens, Size, optimizer};
use crate::planned;
use crate::transformer::{DIM, Net, Training, megatron, sequence_parallel};

const STEPS: usize = 3;
const BLOCKS: usize = 3;

fn builder(axes: &str) -> DeviceMeshBuilder {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .account_memory(true)
}

/// What the ranks report after some steps, and what these do.
fn train(mesh: DeviceMeshBuilder, plan: &Plan) -> (Vec<RankStats>, Explanation) {
    train_wide(mesh, plan, DIM)
}

/// As [`train`], of a model of this width.
fn train_wide(mesh: DeviceMeshBuilder, plan: &Plan, dim: usize) -> (Vec<RankStats>, Explanation) {
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device().autodiff();
    device.seed(5);
    let plan = plan.clone().unit("blocks");
    let net = Net::wide(BLOCKS, dim, &device)
        .parallelize_with(&mesh, &plan)
        .expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let ((), explanation) = burn_dist::explain(&device, || {
        for step in 0..STEPS {
            training.step = step;
            let loss = training.loss(&device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            training.net = optimizer.step(1e-2, training.net.clone(), gradients);
            let loss: f32 = loss.into_scalar();
            assert!(loss.is_finite());
        }
    });
    (device.report().ranks, explanation)
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
            "{what}, rank {}: predicted {predicted} at {}, accounted {found} at {} ({} and {} tasks; apart at \
             {apart:?}: {:?} {:?})",
            rank.rank,
            planned.peak_cause,
            accounted.peak_cause,
            planned_line.len(),
            line.len(),
            apart.map(|at| planned_line[at]),
            apart.map(|at| line[at]),
        );
        assert!(
            predicted.abs_diff(found) * 100 <= predicted,
            "{what}, rank {}: predicted {predicted}, accounted {found}\n{plan}",
            rank.rank
        );
        for class in MemoryClass::ALL {
            let planned = planned.peak_by_class.get(&class).copied().unwrap_or(0);
            let found = accounted.peak.get(class);
            assert!(
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
    // Products in chunks.
    for axes in ["tp=2", "tp=4", "fsdp=2,tp=2"] {
        let plan = sequence_parallel().async_tp(AsyncTp::On);
        let (ranks, explanation) = train(builder(axes), &plan);
        assert_predicted(axes, &ranks, &explanation);
    }
    for axes in ["fsdp=2", "fsdp=2,tp=2"] {
        for strategy in [ShardStrategy::GradOptim, ShardStrategy::Optim] {
            let (ranks, explanation) = train(builder(axes), &megatron().strategy(strategy));
            assert_predicted(&format!("{axes} {strategy:?}"), &ranks, &explanation);
        }
    }
}

#[test]
fn layers_in_float8_hold_what_their_plan_says() {
    // The wide one has several blocks of 128.
    for (scaling, dims) in [
        (Scaling::Tensorwise, &[DIM][..]),
        (Scaling::Rowwise, &[DIM]),
        (Scaling::Blockwise128, &[DIM, 256]),
    ] {
        for axes in ["", "fsdp=2", "fsdp=2,tp=2"] {
            for policy in [ActivationCheckpoint::None, ActivationCheckpoint::Full] {
                let plan = megatron().precision(Precision::new(Float::BF16));
                let plan = plan.float8(Float8::new(scaling)).checkpoint(policy);
                for &dim in dims {
                    let (ranks, explanation) = train_wide(builder(axes), &plan, dim);
                    let what = format!("`{axes}` {scaling} {dim}");
                    assert_predicted(&what, &ranks, &explanation);
                }
            }
        }
    }
}

#[test]
fn every_reshard_policy_holds_what_its_plan_says() {
    for reshard in ["always", "last", "every=2", "never"] {
        let reshard: Reshard = reshard.parse().expect("a policy");
        for prefetch in [0, 2] {
            let plan = Plan::new().reshard(reshard).prefetch(prefetch);
            let (ranks, explanation) = train(builder("fsdp=2"), &plan);
            assert_predicted(
                &format!("{reshard}, {prefetch} ahead"),
                &ranks,
                &explanation,
            );
        }
    }
}

#[test]
fn every_checkpoint_policy_holds_what_its_plan_says() {
    for axes in ["", "fsdp=2", "fsdp=2,tp=2"] {
        for policy in ["full", "every=2", "selective", "bytes=4000"] {
            let policy: ActivationCheckpoint = policy.parse().expect("a policy");
            let (ranks, explanation) = train(builder(axes), &megatron().checkpoint(policy));
            assert_predicted(&format!("`{axes}` {policy}"), &ranks, &explanation);
        }
    }
}

/// Source: ZeRO (arXiv:1910.02054, section 3.1) counts 16 bytes a parameter for Adam in f32: parameter, gradient and
/// two moments. What is gathered in the forward and backward comes before the most gradients are there, and is less
/// than what is under way later.
#[test]
fn adam_under_fsdp_takes_sixteen_bytes_a_parameter_over_the_ranks() {
    let size = Size::M;
    let mesh = DeviceMesh::builder().axes(&"fsdp=4".parse().expect("a mesh"));
    let plan = planned::llama_step(size, mesh, |plan| plan, size.default_seq_and_batch());
    let config = size.config();
    let num_params = config.num_params();
    let embedding = 4 * (config.vocab * config.dim) as u64;
    let kv_dim = config.num_kv_heads * config.head_dim();
    let matrices = 2 * config.dim * (config.dim + kv_dim) + 3 * config.dim * config.hidden_dim;
    let block = 4 * matrices as u64;
    // While the reductions of two units are under way, their gradients are whole; meanwhile the optimizer updates
    // others, with three temporaries of a matrix.
    let under_way = embedding + block;
    let temporaries = 3 * embedding / 4;
    let theory = 16 * num_params as u64 / 4 + under_way + temporaries;
    assert_eq!(plan.timelines.len(), 4);
    for (rank, line) in plan.timelines.iter().enumerate() {
        let parts = [
            MemoryClass::AtRest,
            MemoryClass::Gathered,
            MemoryClass::Gradient,
            MemoryClass::Optimizer,
        ];
        let state = |at: &ClassBytes| parts.iter().map(|class| at.get(*class)).sum::<u64>();
        let most = line.tasks.iter().map(state).max();
        let most = most.expect("there are tasks");
        eprintln!("rank {rank}: {most} of {theory}");
        assert!(
            most.abs_diff(theory) * 100 <= 3 * theory,
            "{most}, {theory}"
        );
        let peaks = &plan.memory[rank].class_peaks;
        let (at_rest, moments) = (peaks[&MemoryClass::AtRest], peaks[&MemoryClass::Optimizer]);
        // The next values of the largest matrix are there beside its own.
        let state = num_params as u64 + embedding / 4;
        assert!(at_rest.abs_diff(state) * 100 <= at_rest, "{at_rest}");
        assert!(
            moments.abs_diff(2 * num_params as u64) * 100 <= moments,
            "{moments}"
        );
    }
}

/// Plans a steady step of so many microbatches.
fn accumulating(axes: &str, microbatches: usize) -> Explanation {
    let size = Size::Tiny;
    let config = size.config();
    let (seq, batch) = size.default_seq_and_batch();
    // By operations of their own: the peak is where the optimizer has its temporaries.
    let mesh = builder(axes).regions(Regions::Flex);
    let mesh = mesh.dry_run().build().expect("a mesh");
    let device = mesh.device().autodiff();
    let mut source = RandomTokens {
        batch,
        seq,
        vocab: config.vocab,
        state: 0,
    };
    let mut model = config.init(&device).parallelize(&mesh).expect("it fits");
    let mut optimizer = optimizer();
    let mut step = || {
        let batch = source.next_batch();
        let hold = device.hold();
        let step = llama::step_of(
            model.clone(),
            &mut optimizer,
            (&batch, microbatches),
            1e-4,
            &device,
        );
        drop(hold);
        model = step.0;
        let _ = step.1.into_data();
    };
    step();
    burn_dist::explain(&device, step).1
}

/// Gradients of all microbatches but the first find those before them there; moments are there all the time, whatever
/// is made of them first.
#[test]
fn gradients_and_moments_are_held_as_such() {
    let config = Size::Tiny.config();
    let bytes = 4 * config.num_params() as u64;
    // On one rank the gradient of a table is made where it is needed, of those of the rows that were read.
    let table = 4 * (config.vocab * config.dim) as u64;
    let kv_dim = config.num_kv_heads * config.head_dim();
    let matrices = 2 * config.dim * (config.dim + kv_dim) + 3 * config.dim * config.hidden_dim;
    let layer = 4 * matrices as u64;
    for (axes, parameters, gradients) in [
        ("", bytes, bytes - table),
        ("dp=2", bytes, bytes),
        ("fsdp=2", bytes / 2, bytes),
        ("tp=2", bytes / 2, bytes / 2),
        ("pp=2", bytes / 2, bytes / 2 - table),
    ] {
        let plan = accumulating(axes, 4);
        let memory = &plan.memory[0];
        let at_peak = |class| memory.peak_by_class.get(&class).copied().unwrap_or(0);
        let near = |found: u64, expected: u64| found.abs_diff(expected) * 20 <= expected;
        let what = format!("`{axes}`: {memory:?}");
        assert!(near(at_peak(MemoryClass::AtRest), parameters), "{what}");
        assert!(
            near(at_peak(MemoryClass::Optimizer), 2 * parameters),
            "{what}"
        );
        // With those under way, of one layer at most.
        let held = at_peak(MemoryClass::Gradient);
        assert!(
            19 * gradients <= 20 * held && 20 * held <= 21 * (gradients + layer),
            "{what}"
        );
        let text = plan.to_string();
        assert!(text.contains("; gradients at most "), "{text}");
    }
}
