//! How long windows are, what is kept of them, and how far a program runs ahead.

use burn::module::Module;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::{ActivationCheckpoint, DeviceMesh, OnMesh, Parallelize, ParallelizeWith};

use super::mesh;
use crate::in_a_process;

#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
pub(super) struct Block {
    norm: LayerNorm,
    #[parallel(colwise)]
    pub(super) up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

#[derive(Module, Debug, Parallelize)]
pub(super) struct Deep {
    pub(super) blocks: Vec<Block>,
}

impl Deep {
    pub(super) fn new(blocks: usize, width: usize, device: &Device) -> Self {
        let blocks = (0..blocks).map(|_| Block {
            norm: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, 2 * width).init(device),
            down: LinearConfig::new(2 * width, width).init(device),
        });
        Self {
            blocks: blocks.collect(),
        }
    }

    pub(super) fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for block in &self.blocks {
            let h = Gelu::new().forward(block.up.forward(block.norm.forward(x.clone())));
            x = x + block.down.forward(h) * 0.1;
        }
        x
    }
}

pub(super) fn batch(rows: usize, width: usize, step: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * width)
        .map(|i| ((i * 37 + step * 11) % 101) as f32 / 101.0 - 0.5)
        .collect();
    Tensor::from_data(TensorData::new(values, [rows, width]), device)
}

pub(super) fn loss(model: &Deep, x: Tensor<2>) -> Tensor<1> {
    (model.forward(x.clone()) - x * 0.5).powi_scalar(2).mean()
}

/// Resident memory of this process, in MiB.
fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    pages.expect("a number of pages") * 4096.0 / f64::from(1 << 20)
}

#[test]
fn on_one_rank_steps_of_short_operations_end_their_windows_early() {
    let (rows, width, steps) = (4, 8, 6);
    let mesh = mesh("");
    let device = mesh.device().autodiff();
    let train = |mut model: Deep| {
        let mut optimizer = AdamConfig::new().init();
        let (mut losses, mut warm) = (Vec::new(), device.report().cache);
        for step in 0..steps {
            let loss = loss(&model, batch(rows, width, step, &device));
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-3, model, gradients);
            if step == 2 {
                warm = device.report().cache;
            }
        }
        let cache = device.report().cache;
        let weights = model.blocks[1].up.weight.val().into_data();
        let windows = cache.windows - warm.windows;
        (losses, weights, windows, cache.misses - warm.misses)
    };
    device.seed(5);
    let model = Deep::new(24, width, &device);
    model.forward(batch(rows, width, 0, &device)).into_data();
    let (losses, weights, windows, misses) = train(model.clone());
    // Of a model that is parallelized, a step is planned as a whole: a read and a report end three windows each.
    let marked = model.parallelize(&mesh).expect("it fits");
    let (expected_losses, expected, whole, _) = train(marked);
    assert_eq!((losses, weights), (expected_losses, expected));
    assert!(whole <= 4, "{whole} windows in 3 steps");
    assert!(windows >= 3 * whole, "{windows} windows in 3 steps");
    assert!(misses <= 4, "{misses} of {windows} windows planned anew");
}

#[test]
fn a_training_loop_that_never_reads_is_cut_between_its_steps() {
    let (rows, width, steps) = (8, 16, 400);
    let train = |device: &Device, mut model: Deep, reads: bool| {
        let mut optimizer = AdamConfig::new().init();
        let mut warm = device.report().cache;
        for step in 0..steps {
            let loss = loss(&model, batch(rows, width, step, device));
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-3, model, gradients);
            if reads {
                loss.into_scalar::<f32>();
            }
            if step == steps / 2 {
                // Asked of the recorder itself, so it closes a window: the loop has to find its place again.
                warm = device.report().cache;
            }
        }
        let cache = device.report().cache;
        let weights = model.blocks[1].up.weight.val().into_data();
        (
            weights,
            cache.windows - warm.windows,
            cache.misses - warm.misses,
        )
    };
    for text in ["", "fsdp=2"] {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        device.seed(5);
        let model = Deep::new(2, width, &device)
            .parallelize(&mesh)
            .expect("it fits");
        // Parameters are made at their first use, and a clone that was not would draw its own.
        loss(&model, batch(rows, width, 0, &device)).into_scalar::<f32>();
        let (expected, ..) = train(&device, model.clone(), true);
        let (weights, windows, misses) = train(&device, model, false);
        assert_eq!(
            weights, expected,
            "{text}: how windows are cut changes no bit"
        );
        assert!(
            windows >= 100,
            "{text}: {windows} windows in {} steps",
            steps / 2
        );
        assert!(
            misses <= 4,
            "{text}: {misses} of {windows} windows planned anew"
        );
    }
}

#[test]
#[ignore = "a child process: its memory is measured"]
fn memory_child() {
    let mesh = DeviceMesh::builder()
        .axis("fsdp", 2)
        .queue_bytes_max(32 << 20)
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    let width = 512; // 1 MiB of data per step, and 16 kFlop for each of its elements
    let values: Vec<f32> = (0..width * width)
        .map(|i| (i % 97) as f32 / 97.0 / width as f32)
        .collect();
    let mut x = Tensor::<2>::from_data(TensorData::new(values.clone(), [width, width]), &device);
    let mut peak = 0.0f64;
    for _ in 0..1200 {
        let w = Tensor::<2>::from_data(TensorData::new(values.clone(), [width, width]), &device);
        x = x.matmul(w) + 1e-3;
        peak = peak.max(resident_mib());
    }
    assert!(x.sum().into_scalar::<f32>().is_finite());
    assert!(peak < 400.0, "{peak} MiB resident, 1200 MiB recorded");
}

#[test]
fn a_program_that_never_reads_runs_at_constant_memory() {
    in_a_process("recording::length::memory_child");
}

#[test]
fn a_step_is_one_window_however_long_it_is() {
    // More operations than a window could once have; and a loop over layers is no place to cut.
    let (blocks, rows, width) = (130, 64, 16);
    let step = |checkpoint: ActivationCheckpoint| {
        let mesh = DeviceMesh::parse("fsdp=2").expect("a mesh");
        let device = mesh.device().autodiff();
        device.seed(3);
        let model = Deep::new(blocks, width, &device);
        let plan = model.plan().checkpoint(checkpoint);
        let mut model = model.parallelize_with(&mesh, &plan).expect("it fits");
        let mut optimizer = SgdConfig::new().init();
        let mut train = |model: Deep| {
            let loss = loss(&model, batch(rows, width, 0, &device));
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            (
                optimizer.step(0.1, model, gradients),
                loss.into_scalar::<f32>(),
            )
        };
        model = train(model).0;
        let ((model, value), explained) = burn_dist::explain(&device, || train(model));
        assert_eq!(explained.windows, 1, "{checkpoint:?}");
        let ops: u64 = explained
            .operations
            .values()
            .flat_map(|kinds| kinds.values())
            .sum();
        assert!(ops > 8192, "{ops} operations");
        drop(model);
        (value, explained)
    };
    let (plain, kept) = step(ActivationCheckpoint::None);
    let (same, again) = step(ActivationCheckpoint::Full);
    assert_eq!(
        plain, same,
        "made again, the activations have the same bits"
    );
    // The last one's activations are needed at once.
    assert_eq!(again.recomputed.visits, blocks as u64 - 1);
    let (peak, less) = (kept.memory[0].peak_bytes, again.memory[0].peak_bytes);
    assert!(less * 2 < peak, "{less} of {peak} bytes");
}

#[test]
fn accumulated_gradients_are_one_window() {
    let (rows, width, microbatches) = (4, 8, 90);
    let mesh = mesh("fsdp=2");
    let device = mesh.device().autodiff();
    let mut model = Deep::new(1, width, &device)
        .parallelize(&mesh)
        .expect("it fits");
    let mut optimizer = SgdConfig::new().init();
    let mut step = |model: Deep| {
        let mut sums = GradientsAccumulator::new();
        for micro in 0..microbatches {
            let loss = loss(&model, batch(rows, width, micro, &device));
            sums.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        let model = optimizer.step(0.1, model, sums.grads());
        model.blocks[0].up.weight.val().sum().into_scalar::<f32>();
        model
    };
    model = step(model);
    let (_, explained) = burn_dist::explain(&device, || step(model));
    let ops: u64 = explained
        .operations
        .values()
        .flat_map(|kinds| kinds.values())
        .sum();
    assert!(
        ops > 4096,
        "{ops} operations: microbatches repeat often enough to be looked at"
    );
    assert_eq!(explained.windows, 1);
    let reductions = &explained.totals["reduce_scatter"];
    assert!(
        reductions.count <= 8,
        "each gradient is reduced once: {reductions:?}"
    );
}

#[test]
fn plans_are_kept_up_to_a_size_and_the_oldest_go_first() {
    let lengths = |device: &Device, lengths: std::ops::Range<usize>| {
        let before = device.report().cache;
        for length in lengths {
            let x = Tensor::<2>::ones([length, 8], device);
            (x.clone().matmul(x.transpose()) + 1.0)
                .sum()
                .into_scalar::<f32>();
        }
        let after = device.report().cache;
        after.hits - before.hits
    };
    let mesh = mesh("fsdp=2");
    let device = mesh.device().autodiff();
    assert_eq!(lengths(&device, 4..36), 0);
    assert_eq!(lengths(&device, 4..36), 32, "thirty lengths fit");
    // Room for some: what was used last stays.
    let mesh = DeviceMesh::builder()
        .axis("fsdp", 2)
        .plan_cache_bytes_max(96 << 10)
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    assert_eq!(lengths(&device, 4..36), 0);
    assert!(lengths(&device, 34..36) == 2, "the last two are there");
    assert_eq!(lengths(&device, 4..6), 0, "the first two are not");
    assert_eq!(
        lengths(&device, 34..36),
        2,
        "two more did not take the place of those used since"
    );
}
