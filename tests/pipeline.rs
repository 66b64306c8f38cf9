//! A step in microbatches is, bit by bit, accumulation of gradients, and its window stays open.

use burn::nn::LinearConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_dist::clock::Hardware;
use burn_dist::parallel::pipeline;
use burn_dist::schedule::Action;
use burn_dist::schedule::{ScheduleChoice, ScheduleKind};
use burn_dist::{
    ActivationCheckpoint, Float, OnMesh, ParallelizeWith, Plan, Precision, ShardStrategy, simulate,
};

use crate::batches::Warnings;
use crate::in_a_process;
use crate::transformer::run::{builder, weights};
use crate::transformer::{Net, SEQ, VOCAB, megatron};
use crate::weights::deterministic;

const ROWS: usize = 8;
const BLOCKS: usize = 4;
const STEPS: usize = 4;

/// The stages of the model.
fn stages(plan: Plan) -> Plan {
    let plan = plan.first("embedding").stages("blocks").unit("blocks");
    plan.last("norm").last("output")
}

fn tokens(step: usize, device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i32> = (0..ROWS * SEQ)
        .map(|i| ((i * 7 + step * 13 + 3) % VOCAB) as i32)
        .collect();
    Tensor::from_data(TensorData::new(tokens, [ROWS, SEQ]), device)
}

fn loss(net: &Net, (x, y): (Tensor<2, Int>, Tensor<2, Int>)) -> Tensor<1> {
    let [rows, seq] = x.dims();
    let logits = net.forward(x).reshape([rows * seq, VOCAB]);
    let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
    cross_entropy.forward(logits, y.reshape([rows * seq]))
}

/// What takes a step: the model, the batch, and the number of microbatches.
type Step<'a> =
    &'a dyn Fn(&Net, (Tensor<2, Int>, Tensor<2, Int>), usize) -> (Tensor<1>, GradientsParams);

/// Losses of a few steps, and the weights afterwards.
type Trained = (Vec<f32>, Vec<TensorData>);

fn train(axes: &str, plan: &Plan, microbatches: usize, step: Step) -> Trained {
    let mesh = builder(axes).build().expect("a mesh");
    let device = mesh.device().autodiff();
    let net = deterministic(Net::new(BLOCKS, &device));
    let mut net = net.parallelize_with(&mesh, plan).expect("a plan");
    let mut optimizer = AdamWConfig::new().init();
    let losses = (0..STEPS).map(|number| {
        let batch = (tokens(number, &device), tokens(number + 1, &device));
        let (loss, gradients) = step(&net, batch, microbatches);
        net = optimizer.step(1e-2, net.clone(), gradients);
        loss.into_scalar()
    });
    let losses = losses.collect();
    (losses, weights(&net))
}

fn by_function(
    net: &Net,
    batch: (Tensor<2, Int>, Tensor<2, Int>),
    microbatches: usize,
) -> (Tensor<1>, GradientsParams) {
    pipeline::forward_backward(net, batch, microbatches, loss).expect("rows enough")
}

/// As a program without burn-dist would do it, held or not.
fn by_hand(
    net: &Net,
    (x, y): (Tensor<2, Int>, Tensor<2, Int>),
    microbatches: usize,
    held: bool,
) -> (Tensor<1>, GradientsParams) {
    let hold = held.then(|| x.device().hold());
    let mut accumulator = GradientsAccumulator::new();
    let mut sum = None;
    let mut start = 0;
    for number in 0..microbatches {
        let rows = ROWS / microbatches + usize::from(number < ROWS % microbatches);
        let part = |t: &Tensor<2, Int>| t.clone().narrow(0, start, rows);
        let mut loss = loss(net, (part(&x), part(&y)));
        start += rows;
        if microbatches > 1 {
            loss = loss * (rows as f64 / ROWS as f64);
        }
        let gradients = GradientsParams::from_grads(loss.backward(), net);
        accumulator.accumulate(net, gradients);
        let loss = loss.inner();
        sum = Some(match sum {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
    drop(hold);
    let sum = sum.expect("a microbatch");
    (Tensor::from_inner(sum), accumulator.grads())
}

#[test]
fn a_step_is_accumulation_on_every_mesh() {
    // One, even, uneven.
    for (axes, plan, counts) in [
        ("", Plan::new(), &[1, 4, 3][..]),
        ("dp=2", Plan::new(), &[4]),
        ("fsdp=2", stages(Plan::new()), &[3]),
        ("dp=2,tp=2", stages(megatron()), &[4, 3]),
    ] {
        for &microbatches in counts {
            let what = format!("{axes}, {microbatches} microbatches");
            let expected = train(axes, &plan, microbatches, &|net, batch, count| {
                by_hand(net, batch, count, false)
            });
            let held = train(axes, &plan, microbatches, &|net, batch, count| {
                by_hand(net, batch, count, true)
            });
            assert_eq!(held, expected, "{what}, held");
            let found = train(axes, &plan, microbatches, &by_function);
            assert_eq!(found, expected, "{what}");
        }
    }
}

/// The law: stages change no bit. Returns what training gives.
fn changes_no_bit(axes: &str, without: &str, plan: &Plan, microbatches: usize) -> Trained {
    let expected = train(without, plan, microbatches, &by_function);
    let found = train(axes, plan, microbatches, &by_function);
    assert_eq!(found, expected, "{axes}, {microbatches} microbatches");
    expected
}

/// The law, for a step that a function makes and for one that is written by hand in a window that is held open.
fn equals_accumulation(axes: &str, without: &str, plan: &Plan, microbatches: usize) {
    let what = format!("{axes}, {microbatches} microbatches");
    let expected = changes_no_bit(axes, without, plan, microbatches);
    let held = train(axes, plan, microbatches, &|net, batch, count| {
        by_hand(net, batch, count, true)
    });
    assert_eq!(held, expected, "{what}, held");
}

#[test]
fn a_pipeline_is_accumulation() {
    for microbatches in [1, 3, 4] {
        equals_accumulation("pp=2", "", &stages(Plan::new()), microbatches);
        equals_accumulation("pp=4", "", &stages(Plan::new()), microbatches);
    }
}

#[test]
fn every_schedule_is_accumulation() {
    for schedule in ScheduleKind::ALL {
        let plan = stages(Plan::new()).schedule(schedule);
        changes_no_bit("pp=2", "", &plan, 4);
        if schedule.is_looped() {
            changes_no_bit("pp=2", "", &plan.stages_per_rank(2), 4);
        } else {
            changes_no_bit("pp=3", "", &plan, 5);
        }
    }
    let auto = stages(Plan::new()).schedule(ScheduleChoice::Auto { bytes_max: None });
    equals_accumulation("pp=4", "", &auto, 7);
    equals_accumulation("pp=2,fsdp=2", "fsdp=2", &auto.stages_per_rank(2), 3);
}

#[test]
fn a_pipeline_beside_other_axes_is_accumulation() {
    equals_accumulation("pp=2,dp=2", "dp=2", &stages(Plan::new()), 4);
    equals_accumulation("pp=2,fsdp=2", "fsdp=2", &stages(Plan::new()), 4);
    equals_accumulation("pp=2,tp=2", "tp=2", &stages(megatron()), 4);
    equals_accumulation("fsdp=2,pp=2,tp=2", "fsdp=2,tp=2", &stages(megatron()), 2);
}

#[test]
fn a_pipeline_under_any_policy_is_accumulation() {
    for plan in [
        stages(Plan::new()).checkpoint(ActivationCheckpoint::Full),
        stages(Plan::new()).checkpoint(ActivationCheckpoint::Selective),
        stages(Plan::new()).precision(Precision::new(Float::BF16)),
        stages(Plan::new()).strategy(ShardStrategy::GradOptim),
        stages(Plan::new()).offload("activations".parse().expect("an offload")),
    ] {
        let plan = plan.schedule(ScheduleKind::ZbH1);
        equals_accumulation("pp=2,fsdp=2", "fsdp=2", &plan, 3);
    }
}

/// A rank holds the parameters, gradients and optimizer state of its own stages alone.
#[test]
fn ranks_hold_their_own_stages() {
    let mesh = builder("pp=2").build().expect("a mesh");
    let device = mesh.device().autodiff();
    let plan = stages(Plan::new());
    let net = deterministic(Net::new(BLOCKS, &device));
    let mut net = net.parallelize_with(&mesh, &plan).expect("a plan");
    let specs = plan.resolve(&net, &mesh).expect("specs");
    let mut optimizer = AdamWConfig::new().init();
    let batch = (tokens(0, &device), tokens(1, &device));
    let (loss, gradients) = by_function(&net, batch, 4);
    net = optimizer.step(1e-2, net, gradients);
    loss.into_scalar::<f32>();
    for (rank, stats) in device.report().ranks.iter().enumerate() {
        let mine = specs.iter().filter(|spec| {
            let stage = spec.stage.as_ref().expect("a stage");
            stage.coord() as usize == rank
        });
        let elements = mine.map(|spec| spec.layout.shape().iter().product::<usize>());
        // The parameters and two moments; the loss and the batch are small.
        let expected = 3 * 4 * elements.sum::<usize>() as u64;
        let found = stats.resident_bytes;
        let is_near = (expected..expected + 4096).contains(&found);
        assert!(
            is_near,
            "rank {rank} holds {found} bytes, {expected} of them its own"
        );
    }
    drop(net);
}

/// Bytes of parameters and optimizer state that each rank keeps after two steps.
fn kept(axes: &str) -> Vec<u64> {
    let mesh = builder(axes).build().expect("a mesh");
    let device = mesh.device().autodiff();
    let net = deterministic(Net::new(BLOCKS, &device));
    let plan = stages(Plan::new());
    let mut net = net.parallelize_with(&mesh, &plan).expect("a plan");
    let mut optimizer = AdamWConfig::new().init();
    for number in 0..2 {
        let batch = (tokens(number, &device), tokens(number + 1, &device));
        let (loss, gradients) = by_function(&net, batch, 4);
        net = optimizer.step(1e-2, net, gradients);
        loss.into_scalar::<f32>();
    }
    let ranks = device.report().ranks;
    ranks.iter().map(|rank| rank.at_rest_bytes).collect()
}

#[test]
fn a_parameter_lives_on_the_ranks_of_its_stage_alone() {
    let whole = kept("")[0];
    for axes in ["pp=2", "pp=4"] {
        let kept = kept(axes);
        let all: u64 = kept.iter().sum();
        // Scalars of the optimizer may be on all of them.
        assert!(all < whole + whole / 20, "{axes}: {kept:?}, whole {whole}");
        assert!(kept.iter().all(|kept| *kept < whole * 3 / 4), "{kept:?}");
    }
    let kept = kept("pp=2,fsdp=2");
    assert!(kept.iter().all(|kept| *kept < whole * 2 / 5), "{kept:?}");
}

/// Flops of products that the ranks execute in a step of equal layers, by their plans.
fn flops(axes: &str, schedule: ScheduleKind) -> Vec<f64> {
    let mesh = builder(axes).dry_run().build().expect("a mesh");
    let device = mesh.device().autodiff();
    let layers: Vec<_> = (0..4)
        .map(|_| LinearConfig::new(32, 32).init(&device))
        .collect();
    let plan = Plan::new().stages("").schedule(schedule);
    let layers = layers.parallelize_with(&mesh, &plan).expect("a plan");
    let x = Tensor::<2>::random([24, 32], Distribution::Default, &device);
    let mut optimizer = AdamWConfig::new().init();
    let step = || {
        let (loss, gradients) = pipeline::forward_backward(&layers, x, 6, |layers, x| {
            // The first layer has a gradient of its input too.
            let out = layers
                .iter()
                .fold(x.require_grad(), |x, layer| layer.forward(x));
            out.powi_scalar(2).mean()
        })
        .expect("rows enough");
        (
            optimizer.step(1e-2, layers.clone(), gradients),
            loss.into_data(),
        )
    };
    let hardware = Hardware::preset("h100").expect("a preset");
    let (_, windows) = simulate(&device, &hardware, step).expect("it ends");
    let mut flops = Vec::new();
    for rank in windows.iter().flat_map(|window| &window.ranks) {
        flops.resize(flops.len().max(mesh.shape().num_ranks()), 0.0);
        for same in &rank.ranks {
            flops[same.0 as usize] += rank.flops;
        }
    }
    flops
}

#[test]
fn a_rank_computes_its_own_stages_alone() {
    let whole = flops("", ScheduleKind::OneFOneB)[0];
    assert!(whole > 0.0);
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        for (axes, ranks) in [("pp=2", 2), ("pp=4", 4)] {
            let flops = flops(axes, schedule);
            assert_eq!(flops.len(), ranks);
            let most = flops.iter().copied().fold(0.0, f64::max);
            let share = whole / ranks as f64;
            assert!(most <= share * 1.02, "{axes}: {flops:?} of {whole}");
        }
    }
}

#[test]
fn steps_are_planned_twice_and_then_known() {
    let mesh = builder("pp=2,dp=2").build().expect("a mesh");
    let device = mesh.device().autodiff();
    let plan = stages(Plan::new()).schedule(ScheduleKind::ZbH1);
    let net = deterministic(Net::new(BLOCKS, &device));
    let mut net = net.parallelize_with(&mesh, &plan).expect("a plan");
    let mut optimizer = AdamWConfig::new().init();
    let mut misses = Vec::new();
    for number in 0..5 {
        let batch = (tokens(number, &device), tokens(number + 1, &device));
        let (loss, gradients) = by_function(&net, batch, 4);
        net = optimizer.step(1e-2, net, gradients);
        loss.into_scalar::<f32>();
        misses.push(device.report().cache.misses);
    }
    assert!(
        misses[1..].windows(2).all(|two| two[0] == two[1]),
        "{misses:?}"
    );
    drop(net);
}

#[test]
fn a_trace_shows_the_actions_of_a_step() {
    let mesh = builder("pp=2,dp=2").trace().build().expect("a mesh");
    let device = mesh.device().autodiff();
    let schedule = ScheduleKind::ZbV;
    let plan = stages(Plan::new()).schedule(schedule);
    let net = deterministic(Net::new(BLOCKS, &device));
    let mut net = net.parallelize_with(&mesh, &plan).expect("a plan");
    let mut optimizer = AdamWConfig::new().init();
    let trace = || device.trace().expect("the mesh keeps one");
    assert_eq!(trace().pipeline(), None);
    for number in 0..2 {
        let batch = (tokens(number, &device), tokens(number + 1, &device));
        let (loss, gradients) = by_function(&net, batch, 3);
        net = optimizer.step(1e-2, net, gradients);
        loss.into_scalar::<f32>();
    }
    // Without a backward: the step before is shown.
    let out = net.forward(tokens(0, &device)).inner();
    out.sum().into_scalar::<f32>();
    let timeline = trace().pipeline().expect("a step");
    let order = schedule.schedule(2, 2, 3).expect("a schedule").order;
    assert_eq!(timeline.ranks.len(), 2);
    for (spans, order) in timeline.ranks.iter().zip(order) {
        // An action that waits has several spans.
        let mut begun: Vec<Action> = Vec::new();
        for span in spans {
            assert!(span.start <= span.end);
            if !begun.contains(&span.action) {
                begun.push(span.action);
            }
        }
        let sorted = |mut actions: Vec<Action>| {
            actions.sort_unstable();
            actions
        };
        assert_eq!(sorted(begun), sorted(order));
    }
    drop(net);
}

/// Windows that are closed before a loop ends which never reads.
fn windows_of_a_loop(held: bool) -> u64 {
    let mesh = builder("").build().expect("a mesh");
    let device = mesh.device().autodiff();
    let before = device.report().cache.windows;
    let hold = held.then(|| device.hold());
    let w = Tensor::<2>::random([4, 4], Distribution::Default, &device);
    let mut x = w.clone();
    for _ in 0..4000 {
        x = x.matmul(w.clone()) * 0.5;
    }
    let recorded = device.report().cache.windows - before;
    drop((x, hold));
    recorded
}

#[test]
fn a_held_window_is_not_cut() {
    assert!(windows_of_a_loop(false) > 1);
    assert_eq!(windows_of_a_loop(true), 0);
}

/// Warnings of a step in whose microbatches `within` is called with the loss.
fn warnings(within: impl Fn(&Tensor<1>)) -> Vec<String> {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let plan = stages(Plan::new());
        let unread = train("", &plan, 4, &by_function);
        let read = train("", &plan, 4, &|net, batch, count| {
            let loss = |net: &Net, batch| {
                let loss = loss(net, batch);
                within(&loss);
                loss
            };
            pipeline::forward_backward(net, batch, count, loss).expect("rows enough")
        });
        assert_eq!(read, unread);
    });
    warnings.messages()
}

#[test]
fn a_read_within_a_step_is_told_once() {
    in_a_process("pipeline::listen_to_warnings");
}

#[test]
#[ignore = "a child process: whether a warning is listened to is found out once, by whichever thread comes first"]
fn listen_to_warnings() {
    let none = warnings(|_| ());
    assert!(none.is_empty(), "{none:?}");
    let found = warnings(|loss| {
        loss.clone().into_scalar::<f32>();
    });
    assert_eq!(found.len(), 1, "{found:?}");
    let place = format!("of the step at {}:", file!());
    for part in [
        "a tensor of shape [1] in microbatch 1 of 4",
        &place,
        "Read after the step",
    ] {
        assert!(found[0].contains(part), "no `{part}` in: {}", found[0]);
    }
}
