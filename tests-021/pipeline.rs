//! A step in microbatches is, bit by bit, accumulation of gradients, and its window stays open.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Distribution, ElementConversion, Int, Tensor, TensorData};
use burn_dist::parallel::pipeline;
use burn_dist::{MeshBackend, MeshDevice, ParallelizeWith, Plan};

use crate::transformer::run::{B, builder, weights};
use crate::transformer::{Net, SEQ, VOCAB};
use crate::weights::deterministic;

const ROWS: usize = 8;
const BLOCKS: usize = 4;
const STEPS: usize = 10;

/// The stages of the model.
fn stages(plan: Plan) -> Plan {
    let plan = plan.first("embedding").stages("blocks").unit("blocks");
    plan.last("norm").last("output")
}

fn tokens(step: usize, device: &MeshDevice) -> Tensor<B, 2, Int> {
    let tokens: Vec<i32> = (0..ROWS * SEQ)
        .map(|i| ((i * 7 + step * 13 + 3) % VOCAB) as i32)
        .collect();
    Tensor::from_data(TensorData::new(tokens, [ROWS, SEQ]), device)
}

fn loss<A: AutodiffBackend>(
    net: &Net<A>,
    (x, y): (Tensor<A, 2, Int>, Tensor<A, 2, Int>),
) -> Tensor<A, 1> {
    let [rows, seq] = x.dims();
    let logits = net.forward(x).reshape([rows * seq, VOCAB]);
    let cross_entropy = CrossEntropyLossConfig::new().init(&logits.device());
    cross_entropy.forward(logits, y.reshape([rows * seq]))
}

/// What takes a step: the model, the batch, and the number of microbatches.
type Step<'a> = &'a dyn Fn(
    &Net<B>,
    (Tensor<B, 2, Int>, Tensor<B, 2, Int>),
    usize,
) -> (Tensor<B, 1>, GradientsParams);

/// Losses of a few steps, and the weights afterwards.
type Trained = (Vec<f32>, Vec<TensorData>);

fn train(axes: &str, plan: &Plan, microbatches: usize, step: Step) -> Trained {
    let mesh = builder(axes).build().expect("a mesh");
    let device = mesh.device();
    let net = deterministic(Net::<B>::new(BLOCKS, &device));
    let mut net = net.parallelize_with(&mesh, plan).expect("a plan");
    let mut optimizer = AdamWConfig::new().init();
    let losses = (0..STEPS).map(|number| {
        let batch = (tokens(number, &device), tokens(number + 1, &device));
        let (loss, gradients) = step(&net, batch, microbatches);
        net = optimizer.step(1e-2, net.clone(), gradients);
        loss.into_scalar().elem()
    });
    let losses = losses.collect();
    (losses, weights(&net))
}

fn by_function(
    net: &Net<B>,
    batch: (Tensor<B, 2, Int>, Tensor<B, 2, Int>),
    microbatches: usize,
) -> (Tensor<B, 1>, GradientsParams) {
    pipeline::forward_backward(net, batch, microbatches, loss).expect("rows enough")
}

/// As a program without burn-dist would do it, held.
fn by_hand(
    net: &Net<B>,
    (x, y): (Tensor<B, 2, Int>, Tensor<B, 2, Int>),
    microbatches: usize,
) -> (Tensor<B, 1>, GradientsParams) {
    let hold = B::hold(&x.device());
    let mut accumulator = GradientsAccumulator::new();
    let mut sum = None;
    let mut start = 0;
    for number in 0..microbatches {
        let rows = ROWS / microbatches + usize::from(number < ROWS % microbatches);
        let part = |t: &Tensor<B, 2, Int>| t.clone().narrow(0, start, rows);
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

/// The law: stages change no bit, of a step that a function makes and of one that is written by hand.
fn equals_accumulation(axes: &str, without: &str, plan: &Plan, microbatches: usize) {
    let what = format!("{axes}, {microbatches} microbatches");
    let expected = train(without, plan, microbatches, &by_function);
    let found = train(axes, plan, microbatches, &by_function);
    assert_eq!(found, expected, "{what}");
    let held = train(axes, plan, microbatches, &by_hand);
    assert_eq!(held, expected, "{what}, held");
}

#[test]
fn a_pipeline_is_accumulation() {
    for microbatches in [1, 3, 4] {
        equals_accumulation("pp=2", "", &stages(Plan::new()), microbatches);
        equals_accumulation("pp=4", "", &stages(Plan::new()), microbatches);
    }
}

/// Windows that are closed before a loop ends which never reads.
fn windows_of_a_loop(held: bool) -> u64 {
    let mesh = builder("").build().expect("a mesh");
    let device = mesh.device();
    let before = B::report(&device).cache.windows;
    let hold = held.then(|| B::hold(&device));
    let w = Tensor::<B, 2>::random([4, 4], Distribution::Default, &device);
    let mut x = w.clone();
    for _ in 0..4000 {
        x = x.matmul(w.clone()) * 0.5;
    }
    let recorded = B::report(&device).cache.windows - before;
    drop((x, hold));
    recorded
}

#[test]
fn a_held_window_is_not_cut() {
    assert!(windows_of_a_loop(false) > 1);
    assert_eq!(windows_of_a_loop(true), 0);
}
