//! Memory while the state of an optimizer is loaded: each rank has its part, and nobody the whole of a parameter's
//! state.

use std::sync::atomic::Ordering;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn_dist::checkpoint::{Checkpointer, State};
use burn_dist::{DeviceMesh, OnMesh, ParallelizeWith, Plan};

#[path = "../../dev/counting.rs"]
mod counting;
use counting::{HELD, LARGEST, PEAK};

/// Calls `f`, and returns the largest block of the host that was taken for it, and how much more was held at once than
/// before.
fn counted<T>(f: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    LARGEST.store(0, Ordering::Relaxed);
    let result = f();
    let more = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    (result, LARGEST.load(Ordering::Relaxed), more)
}

const RANKS: usize = 4;
const DIM: usize = 1024;
/// A moment of the weight.
const WHOLE: usize = DIM * DIM * 4;

/// A step whose gradient is made of the parameters where they lie, so that nothing else moves.
fn step(optimizer: &mut ModuleOptimizer, model: Linear) -> Linear {
    let mut gradients = GradientsParams::new();
    let gradient = model.weight.val().inner().mul_scalar(0.5);
    gradients.register(model.weight.id, gradient);
    optimizer.step(1e-2, model, gradients)
}

#[test]
fn nobody_has_the_whole_state_of_a_parameter_while_it_is_loaded() {
    let mesh = DeviceMesh::builder()
        .axis("fsdp", RANKS)
        .account_memory(true)
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    let line: Linear = LinearConfig::new(DIM, DIM).with_bias(false).init(&device);
    let model = line.parallelize_with(&mesh, &Plan::new()).expect("it fits");
    let mut optimizer = AdamConfig::new().init();
    let model = step(&mut optimizer, model);
    let folder = tempfile::tempdir().expect("a folder");
    let mut checkpoints = Checkpointer::at(folder.path(), &device).expect("a folder");
    let state = State::new().optimizer("optimizer", &optimizer, &model);
    checkpoints.save(1, state).expect("it can be saved");
    drop(optimizer);

    let saved = checkpoints.open(1).expect("it was saved");
    let of_rank = |rank: usize| device.report().ranks[rank].resident_bytes as usize;
    let received = || {
        let ranks = device.report().ranks;
        let each = ranks.iter().flat_map(|rank| &rank.received);
        each.map(|(_, _, bytes)| bytes).sum::<u64>()
    };
    let (before, moved) = (of_rank(0), received());
    let load = || saved.optimizer("optimizer", AdamConfig::new().init(), &model);
    let (loaded, largest, more) = counted(load);
    let mut optimizer = loaded.expect("it fits");
    assert!(
        largest <= WHOLE / RANKS + 4096,
        "a block of {largest} bytes"
    );
    // All ranks are in this process: two moments in all, and what reads them.
    assert!(more < 3 * WHOLE, "{more} bytes more at once");
    let of_state = of_rank(0) - before;
    assert_eq!(of_state, 2 * WHOLE / RANKS, "bytes of a rank");

    // The step finds them there.
    let ((), largest, _) = counted(|| {
        drop(step(&mut optimizer, model.clone()));
        device.report();
    });
    assert!(largest < WHOLE, "a block of {largest} bytes in a step");
    assert_eq!(received(), moved, "bytes that ranks received");
    for rank in device.report().ranks {
        assert!((rank.peak_bytes as usize) < 2 * WHOLE, "{rank:?}");
    }
}
