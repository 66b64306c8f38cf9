//! Checkpoints of released versions go on being read.

use super::prelude::*;
use super::run::*;
use crate::weights::deterministic;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/resume/samples/1");

fn linear(axes: &str) -> (DeviceMesh, Linear) {
    let mesh = builder(axes).build().expect("a mesh");
    let linear = LinearConfig::new(2, 3).init(&mesh.device().autodiff());
    let linear = linear
        .parallelize_with(&mesh, &Plan::new())
        .expect("a plan");
    (mesh, linear)
}

fn step(linear: Linear, optimizer: &mut ModuleOptimizer, device: &Device) -> Linear {
    let x = Tensor::<2>::from_data([[1.0, -2.0], [0.5, 3.0]], device);
    let loss = linear.forward(x).powi_scalar(2).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &linear);
    optimizer.step(0.5, linear, gradients)
}

/// Makes the sample of the current version.
#[test]
#[ignore = "makes a file of the repository"]
fn make() {
    let (mesh, linear) = linear("fsdp=2");
    let device = mesh.device().autodiff();
    let mut adam = AdamConfig::new().init();
    let linear = step(deterministic(linear), &mut adam, &device);
    let scheduler = ExponentialLrSchedulerConfig::new(0.5, 0.75).init().unwrap();
    let mut checkpoints = Checkpointer::at(SAMPLE, &device).unwrap();
    let state = State::new()
        .module("model", &linear)
        .optimizer("optimizer", &adam, &linear)
        .scheduler("scheduler", &scheduler)
        .value("half", &0.5);
    checkpoints.save(1, state).unwrap();
}

#[test]
fn version_1_is_read() {
    // The step before the sample was made, and the one after.
    let (mesh, fresh) = linear("");
    let mut adam = AdamConfig::new().init();
    let expected = step(deterministic(fresh), &mut adam, &mesh.device().autodiff());
    let expected = step(expected, &mut adam, &mesh.device().autodiff());
    let expected: Vec<f32> = expected.weight.val().into_data().try_to_vec().unwrap();
    for axes in ["fsdp=2", "", "tp=3"] {
        let (mesh, fresh) = linear(axes);
        let device = mesh.device().autodiff();
        let saved = Checkpointer::at(SAMPLE, &device)
            .unwrap()
            .latest()
            .unwrap()
            .unwrap();
        let linear = saved.module("model", fresh).unwrap();
        let mut adam = saved
            .optimizer("optimizer", AdamConfig::new().init(), &linear)
            .unwrap();
        let scheduler = ExponentialLrSchedulerConfig::new(0.5, 0.75).init().unwrap();
        saved.scheduler("scheduler", scheduler).unwrap();
        assert_eq!(saved.value::<f64>("half").unwrap(), 0.5);
        saved.restore_random().unwrap();
        let linear = step(linear, &mut adam, &device);
        let found: Vec<f32> = linear.weight.val().into_data().try_to_vec().unwrap();
        close(&found, &expected, axes);
    }
}
