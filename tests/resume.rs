//! Training that goes on from a checkpoint is, bit by bit, training that was not interrupted; on another mesh it starts
//! from the same bits.

mod misfits;
mod optimizers;
mod processes;
mod run;
mod sample;
mod state;
mod zoo;

/// What all of them use.
mod prelude {
    pub(super) use std::path::{Path, PathBuf};
    pub(super) use std::sync::Arc;

    pub(super) use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
    pub(super) use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
    pub(super) use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
    pub(super) use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
    pub(super) use burn::module::{Module, Param, ParamId, Parameter};
    pub(super) use burn::nn::loss::CrossEntropyLossConfig;
    pub(super) use burn::nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, LinearLayout,
    };
    pub(super) use burn::optim::decay::WeightDecayConfig;
    pub(super) use burn::optim::momentum::MomentumConfig;
    pub(super) use burn::optim::{
        AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, ModuleOptimizer,
        MuonConfig, RmsPropConfig, SgdConfig,
    };
    pub(super) use burn::tensor::{
        Bool, DType, Device, Distribution, FloatDType, Int, Tensor, TensorData,
    };
    pub(super) use burn_dist::checkpoint::storage::memory::MemoryStorage;
    pub(super) use burn_dist::checkpoint::{
        Checkpoint, CheckpointError, Checkpointer, Checkpoints, LoadOptions, Match, State,
        StateError, tools,
    };
    pub(super) use burn_dist::optim::{Ema, LossScaler};
    pub(super) use burn_dist::{DeviceMesh, DeviceMeshBuilder, ParallelizeWith, Plan};

    pub(super) use tempfile::TempDir;

    pub(super) use crate::transformer::run::{builder, weights};
    pub(super) use crate::transformer::worlds::in_processes;
    pub(super) use crate::transformer::{Net, SEQ, VOCAB, sequence_parallel};
}

use prelude::*;
use run::*;

#[test]
fn resumed_is_uninterrupted_on_every_mesh() {
    for axes in [
        "",
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "tp=2",
        "fsdp=2,tp=2",
        "dp=2,fsdp=2",
        "cp=2",
        "pp=2",
        "pp=2,fsdp=2",
        "pp=4",
    ] {
        let (whole, halves) = (directory(), directory());
        let adam = || AdamWConfig::new().init();
        // Models start at random: both go on from one.
        begin(axes, adam(), [whole.path(), halves.path()]);
        let start = |root| Run::start(builder(axes), root, adam());
        let expected = start(whole.path()).train(STEPS).save();
        // One of them has the directory at a time.
        let first = start(halves.path()).train(HALF).save().losses;
        let rest = start(halves.path()).train(STEPS - HALF).save().losses;
        assert_eq!([first, rest].concat(), expected.losses, "{axes}");
        assert_equal(halves.path(), whole.path(), axes);
    }
}

#[test]
fn another_mesh_goes_on_from_the_same_bits() {
    let adam = || AdamWConfig::new().init();
    let (whole, first) = (directory(), directory());
    begin("fsdp=4", adam(), [whole.path(), first.path()]);
    let expected = Run::start(builder("fsdp=4"), whole.path(), adam()).train(HALF);
    for axes in [
        "",
        "fsdp=2,tp=2",
        "fsdp=3",
        "pp=2",
        "pp=4",
        "tp=2,dp=3",
        "pp=2,tp=2",
        "fsdp=2",
    ] {
        let here = directory();
        let mut run = Run::start(builder(axes), first.path(), adam());
        // Loaded and saved again: the same elements, in other pieces.
        run.checkpoints = Checkpointer::at(here.path(), &run.device).expect("a directory");
        let run = run.save();
        assert_equal(here.path(), first.path(), axes);
        close(&run.train(HALF).losses, &expected.losses, axes);
    }
}

#[test]
fn a_save_in_the_background_has_the_state_at_its_call() {
    let adam = || AdamWConfig::new().init();
    for axes in ["fsdp=2,tp=2", "pp=2"] {
        let (here, there) = (directory(), directory());
        let mut run = Run::start(builder(axes), here.path(), adam()).train(HALF);
        let state = run.state();
        let saving = run.checkpoints.save_in_background(2, state).unwrap();
        run.checkpoints = Checkpointer::at(there.path(), &run.device).unwrap();
        let mut run = run.save().train(HALF);
        saving.wait().unwrap();
        assert_equal(here.path(), there.path(), axes);
        // The next one waits for it.
        let state = run.state();
        let first = run.checkpoints.save_in_background(4, state).unwrap();
        let state = run.state();
        let second = run.checkpoints.save_in_background(5, state).unwrap();
        second.wait().unwrap();
        assert!(first.has_ended());
        first.wait().unwrap();
        assert_eq!(run.checkpoints.checkpoints().steps().unwrap(), [2, 4, 5]);
    }
}

#[test]
fn a_load_draws_and_moves_nothing() {
    let root = directory();
    let mesh = builder("fsdp=2,tp=2").build().unwrap();
    let net = Net::new(BLOCKS, &mesh.device().autodiff())
        .parallelize_with(&mesh, &plan())
        .unwrap();
    let mut checkpoints = Checkpointer::at(root.path(), &mesh.device().autodiff()).unwrap();
    checkpoints
        .save(1, State::new().module("model", &net))
        .unwrap();

    let mesh = builder("tp=2,fsdp=3").build().unwrap();
    let device = mesh.device().autodiff();
    let fresh = Net::new(BLOCKS, &device)
        .parallelize_with(&mesh, &plan())
        .unwrap();
    let checkpoints = Checkpointer::at(root.path(), &device).unwrap();
    let saved = checkpoints.latest().unwrap().unwrap();
    let next = || Tensor::<1>::random([4], Distribution::Default, &device).into_data();
    device.seed(7);
    let expected = next();
    device.seed(7);
    let (loaded, explanation) = burn_dist::explain(&device, || {
        let loaded = saved.module("model", fresh).unwrap();
        device.sync().unwrap();
        loaded
    });
    let text = explanation.to_string();
    assert!(
        !text.contains("gather") && !text.contains("all-to-all") && !text.contains("random"),
        "{text}"
    );
    assert_eq!(next(), expected, "random numbers were drawn");
    for (found, expected) in weights(&loaded).iter().zip(weights(&net)) {
        assert!(found.bytes() == expected.bytes());
    }
}
