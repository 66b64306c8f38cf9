//! What does not fit.

use super::prelude::*;
use super::run::*;
use super::zoo::*;
use burn_dist_checkpoint::{SaveId, SavePlan};

#[test]
fn what_does_not_fit_is_named() {
    let root = directory();
    let (mesh, model) = zoo("fsdp=2");
    let device = mesh.device().autodiff();
    let mut optimizer = AdamConfig::new().init();
    let (model, _) = draw(model, &mut optimizer, &device);
    let mut checkpoints = Checkpointer::at(root.path(), &device).unwrap();
    assert!(checkpoints.latest().unwrap().is_none());
    let state = || State::new().module("model", &model).value("step", &3);
    checkpoints
        .save(3, state().optimizer("optimizer", &optimizer, &model))
        .unwrap();
    let text = |error: StateError| error.to_string();

    // Saving.
    let twice = state().value("step", &4);
    assert_eq!(
        text(checkpoints.save(4, twice).unwrap_err()),
        "two things are called `step`: give each a name of its own"
    );
    let again = text(checkpoints.save(3, state()).unwrap_err());
    assert!(again.starts_with("there is a checkpoint at "), "{again}");
    let same = State::new()
        .module("model", &model)
        .module("model.rows", &model.rows);
    assert_eq!(
        text(checkpoints.save(4, same).unwrap_err()),
        "the tensor model.rows.bias is there twice"
    );
    let dry = DeviceMesh::builder()
        .axis("fsdp", 2)
        .dry_run()
        .build()
        .unwrap();
    let refused = Checkpointer::at(root.path(), &dry.device()).err().unwrap();
    assert_eq!(
        text(refused),
        "mesh fsdp=2 is a dry run: it has no values to save and takes none"
    );

    // Loading.
    let saved = checkpoints.latest().unwrap().unwrap();
    assert_eq!(
        text(saved.module("models", model.clone()).unwrap_err()),
        "the checkpoint has no module `models`; it has `model`"
    );
    assert_eq!(
        text(saved.value::<String>("step").unwrap_err()),
        "the checkpoint's `step` does not fit what it is loaded into: invalid type: integer `3`, expected a string"
    );
    let other = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init();
    let error = text(saved.optimizer("optimizer", other, &model).err().unwrap());
    assert!(
        error.contains("does not fit what it is loaded into"),
        "{error}"
    );
    let smaller: Linear = LinearConfig::new(10, 3).init(&device);
    let error = saved
        .optimizer("optimizer", AdamConfig::new().init(), &smaller)
        .err()
        .unwrap();
    assert!(
        matches!(&error, StateError::Parameters { paths, .. } if paths.len() == 6),
        "{error}"
    );
    let linear: Linear = LinearConfig::new(11, 3).init(&device);
    let error = text(
        saved
            .module(
                "model",
                Holder {
                    rows: linear,
                    extra: smaller,
                },
            )
            .err()
            .unwrap(),
    );
    assert!(error.contains("missing     model.extra.weight"), "{error}");
    assert!(error.contains("unexpected  model.norm.gamma"), "{error}");
    assert!(
        error.contains("model.rows.weight") && error.contains("[11, 3]"),
        "{error}"
    );

    // Some of it.
    let smaller: Linear = LinearConfig::new(10, 3).init(&device);
    let rows: Linear = LinearConfig::new(10, 3).init(&device);
    let lenient = LoadOptions {
        matching: Match::Lenient,
        ..LoadOptions::default()
    };
    let saved = saved.options(lenient);
    let before = smaller.weight.val().into_data();
    let (holder, report) = saved
        .module_reported(
            "model",
            Holder {
                rows,
                extra: smaller,
            },
        )
        .unwrap();
    assert_eq!(report.missing, ["model.extra.weight", "model.extra.bias"]);
    holder
        .extra
        .weight
        .val()
        .into_data()
        .assert_eq(&before, true);
    holder
        .rows
        .weight
        .val()
        .into_data()
        .assert_eq(&model.rows.weight.val().into_data(), true);
}

/// Another model, with a part of the first.
#[derive(Module, Debug)]
struct Holder {
    rows: Linear,
    extra: Linear,
}

#[test]
fn another_type_is_converted_where_it_is_asked_for() {
    let root = directory();
    let mesh = builder("fsdp=2").build().unwrap();
    let device = mesh.device().autodiff();
    let linear: Linear = LinearConfig::new(10, 3).init(&device);
    // A clone of what has no value yet would get another one.
    drop(linear.weight.val());
    let halves = Linear {
        weight: linear
            .weight
            .clone()
            .map(|weight| weight.cast(FloatDType::BF16)),
        bias: None,
    };
    let mut checkpoints = Checkpointer::at(root.path(), &device).unwrap();
    checkpoints
        .save(1, State::new().module("model", &halves))
        .unwrap();
    let saved = checkpoints.open(1).unwrap();
    let fresh = || LinearConfig::new(10, 3).with_bias(false).init(&device);
    let error = saved.module("model", fresh()).unwrap_err();
    assert!(
        matches!(error, StateError::Checkpoint(CheckpointError::Keys(_))),
        "{error}"
    );
    let convert = LoadOptions {
        convert: true,
        ..LoadOptions::default()
    };
    let loaded = saved.options(convert).module("model", fresh()).unwrap();
    let expected = linear.weight.val().into_data().convert_dtype(DType::BF16);
    loaded
        .weight
        .val()
        .into_data()
        .assert_eq(&expected.convert_dtype(DType::F32), true);
}

#[test]
fn metadata_of_others_and_of_later_versions_are_refused() {
    let root = directory();
    let mesh = builder("").build().unwrap();
    let checkpoints = Checkpointer::at(root.path(), &mesh.device().autodiff()).unwrap();
    let said = |step: u64, metadata: serde_json::Value| {
        let files = checkpoints.checkpoints();
        let plan = SavePlan::new(mesh.shape(), Vec::new(), &[0]).unwrap();
        let save = files.save(step, SaveId::random().unwrap()).unwrap();
        let part = save.write(&plan, 0, |_, _| Ok(()), |_| {}).unwrap();
        let metadata = metadata.as_object().unwrap().clone();
        save.commit(&plan, vec![part], metadata).unwrap();
        checkpoints.open(step).map(drop).unwrap_err().to_string()
    };
    let later = said(1, serde_json::json!({ "burn-dist": { "version": 2 } }));
    assert!(
        later.contains("it has version 2, and this program reads up to 1"),
        "{later}"
    );
    let other = said(2, serde_json::json!({ "mine": 3 }));
    assert!(
        other.contains("it was not saved by a `Checkpointer`"),
        "{other}"
    );
    let missing = checkpoints.open(7).map(drop).unwrap_err().to_string();
    assert!(
        missing.starts_with("there is no checkpoint at "),
        "{missing}"
    );
}
