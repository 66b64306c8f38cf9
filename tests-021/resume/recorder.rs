//! Records as files, for burn-train.

use super::prelude::*;
use super::run::*;
use super::zoo::*;

#[test]
fn a_recorder_leaves_tensors_on_the_ranks() {
    let root = directory();
    let path = |name: &str| root.path().join(name);
    let (mesh, mut model) = zoo("fsdp=2");
    let device = mesh.device();
    let mut optimizer = AdamConfig::new().init();
    (model, _) = draw(model, &mut optimizer, &device);
    let record = Recorder::<B>::record(&DistRecorder, model.clone().into_record(), path("model-1"));
    record.unwrap();
    let record = Recorder::<B>::record(&DistRecorder, optimizer.to_record(), path("optim-1"));
    record.unwrap();
    let scheduler = ExponentialLrSchedulerConfig::new(0.1, 0.9).init().unwrap();
    let record = scheduler.to_record::<B>();
    Recorder::<B>::record(&DistRecorder, record, path("scheduler-1")).unwrap();
    assert!(path("scheduler-1.dist").exists() && !path("scheduler-1.tensors").exists());

    // Keys are paths, of the optimizer's state too.
    let keys = |name: &str| -> Vec<String> {
        let (_, checkpoint) = Checkpoints::at(path(name)).open_latest().unwrap().unwrap();
        let tensors = checkpoint.manifest().tensors.iter();
        tensors.map(|tensor| tensor.key.clone()).collect()
    };
    assert!(keys("model-1.tensors").contains(&"record.rows.weight".to_string()));
    let state = keys("optim-1.tensors");
    assert!(
        state.contains(&"record.rows.weight.momentum.moment_1".to_string()),
        "{state:?}"
    );

    let (mesh, other) = zoo("tp=2,fsdp=2");
    let there = mesh.device();
    let other = other
        .load_file(path("model-1"), &DistRecorder, &there)
        .unwrap();
    assert_eq!(
        other.rows.weight.val().layout_text().unwrap(),
        "[{tp, fsdp*}, -]"
    );
    for (found, expected) in weights(&other).iter().zip(weights(&model)) {
        assert!(found.bytes == expected.bytes);
    }
    let record = Recorder::<B>::load(&DistRecorder, path("optim-1"), &there).unwrap();
    let mut resumed = AdamConfig::new().init::<B, Zoo<B>>().load_record(record);
    let step =
        |zoo: Zoo<B>, optimizer: &mut dyn FnMut(Zoo<B>, GradientsParams) -> Zoo<B>, device| {
            let loss = zoo
                .rows
                .forward(Tensor::<B, 2>::ones([4, 10], device))
                .sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &zoo);
            optimizer(zoo, gradients)
        };
    let found = step(
        other,
        &mut |zoo, gradients| resumed.step(0.1, zoo, gradients),
        &there,
    );
    let expected = step(
        model,
        &mut |zoo, gradients| optimizer.step(0.1, zoo, gradients),
        &device,
    );
    let tolerance = Tolerance::<f32>::default();
    let expected = expected.rows.weight.val().into_data();
    found
        .rows
        .weight
        .val()
        .into_data()
        .assert_approx_eq(&expected, tolerance);

    // A record that was removed takes its tensors along; one that is there is replaced.
    std::fs::remove_file(path("model-1.dist")).unwrap();
    found
        .clone()
        .save_file(path("model-3"), &DistRecorder)
        .unwrap();
    assert!(!path("model-1.tensors").exists() && path("optim-1.tensors").exists());
    found
        .clone()
        .save_file(path("model-3"), &DistRecorder)
        .unwrap();
    assert_eq!(
        Checkpoints::at(path("model-3.tensors")).steps().unwrap(),
        [1]
    );

    // What is not there, and what does not fit.
    let missing =
        Recorder::<B>::load::<<Zoo<B> as Module<B>>::Record>(&DistRecorder, path("no"), &there);
    assert!(matches!(missing, Err(RecorderError::FileNotFound(_))));
    let wrong = Recorder::<B>::load::<<Linear<B> as Module<B>>::Record>(
        &DistRecorder,
        path("model-3"),
        &there,
    );
    assert!(
        wrong
            .err()
            .unwrap()
            .to_string()
            .contains("does not fit what it is loaded into")
    );
    let several = in_processes(2, |world| {
        let mesh = builder("fsdp=2").world(world).build().unwrap();
        let linear: Linear<B> = LinearConfig::new(4, 2).init(&mesh.device());
        let saved = linear.save_file(path("several"), &DistRecorder);
        saved.unwrap_err().to_string()
    });
    assert!(several[0].contains("is for one process") && several[1].contains("is for one process"));
}
