//! Both lines of Burn are alike: checkpoints of one are those of the other, saved by either, loaded by either, value by
//! value; one model has one plan, and its losses.

use std::path::Path;

use burn_dist::checkpoint::{Checkpoints, tools};
use serde_json::Value;

mod decoder;
mod losses;
mod plans;
mod texts;

/// Steps of training before the state is saved, and after it was loaded.
const STEPS: usize = 3;

/// The program on Burn's current line.
mod current {
    use super::*;
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
    use burn::optim::{AdamConfig, GradientsParams};
    use burn::tensor::{Device, Tensor};
    use burn_dist::checkpoint::{Checkpointer, State};
    use burn_dist::{DeviceMesh, ParallelizeWith, Plan};

    type Model = (Linear, Linear);

    fn model(device: &Device) -> Model {
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        (linear(6, 4), linear(4, 2))
    }

    /// Goes on from the newest checkpoint, if there is one, and saves another one under `step`.
    pub(super) fn train(folder: &Path, mesh: &str, steps: usize, step: u64) {
        let mesh = DeviceMesh::parse(mesh).expect("a mesh");
        let device = mesh.device().autodiff();
        device.seed(7);
        let plan = Plan::new().colwise("0").rowwise("1");
        let mut model = model(&device)
            .parallelize_with(&mesh, &plan)
            .expect("it fits");
        let mut optimizer = AdamConfig::new().init();
        let scheduler = CosineAnnealingLrSchedulerConfig::new(0.1, 10);
        let mut scheduler = scheduler.init().expect("a schedule");
        let mut checkpoints = Checkpointer::at(folder, &device).expect("a folder");
        let mut done = 0usize;
        if let Some(saved) = checkpoints.latest().expect("it can be read") {
            model = saved.module("model", model).expect("it fits");
            optimizer = saved
                .optimizer("optimizer", optimizer, &model)
                .expect("it fits");
            scheduler = saved.scheduler("scheduler", scheduler).expect("it fits");
            done = saved.value("done").expect("it was saved");
            saved.restore_random().expect("it was saved");
        }
        for number in done..done + steps {
            let x = Tensor::<2>::ones([4, 6], &device) * (number as f32 + 1.0);
            let loss = model.1.forward(model.0.forward(x)).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(scheduler.step(), model, gradients);
        }
        let state = State::new()
            .module("model", &model)
            .optimizer("optimizer", &optimizer, &model)
            .scheduler("scheduler", &scheduler)
            .value("done", &(done + steps));
        checkpoints.save(step, state).expect("it can be saved");
        assert_eq!(model.num_params(), 6 * 4 + 4 + 4 * 2 + 2);
    }
}

/// The same program on Burn 0.21.
mod before {
    use super::*;
    use burn_021::backend::{Autodiff, Flex};
    use burn_021::lr_scheduler::LrScheduler;
    use burn_021::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
    use burn_021::nn::{Linear, LinearConfig};
    use burn_021::optim::{AdamConfig, GradientsParams, Optimizer};
    use burn_021::tensor::Tensor;
    use burn_021::tensor::backend::Backend;
    use burn_dist_021::checkpoint::{Checkpointer, State};
    use burn_dist_021::{DeviceMesh, Dist, ParallelizeWith, Plan};

    type B = Autodiff<Dist<Flex>>;
    type Model = (Linear<B>, Linear<B>);

    /// Goes on from the newest checkpoint, if there is one, and saves another one under `step`.
    pub(super) fn train(folder: &Path, mesh: &str, steps: usize, step: u64) {
        let mesh = DeviceMesh::parse(mesh).expect("a mesh");
        let device = mesh.device();
        B::seed(&device, 7);
        let linear = |input, output| LinearConfig::new(input, output).init(&device);
        let model: Model = (linear(6, 4), linear(4, 2));
        let plan = Plan::new().colwise("0").rowwise("1");
        let mut model = model.parallelize_with(&mesh, &plan).expect("it fits");
        let mut optimizer = AdamConfig::new().init();
        let scheduler = CosineAnnealingLrSchedulerConfig::new(0.1, 10);
        let mut scheduler = scheduler.init().expect("a schedule");
        let mut checkpoints = Checkpointer::<B>::at(folder, &device).expect("a folder");
        let mut done = 0usize;
        if let Some(saved) = checkpoints.latest().expect("it can be read") {
            model = saved.module("model", model).expect("it fits");
            optimizer = saved
                .optimizer("optimizer", optimizer, &model)
                .expect("it fits");
            scheduler = saved.scheduler("scheduler", scheduler).expect("it fits");
            done = saved.value("done").expect("it was saved");
            saved.restore_random().expect("it was saved");
        }
        for number in done..done + steps {
            let x = Tensor::<B, 2>::ones([4, 6], &device) * (number as f32 + 1.0);
            let loss = model.1.forward(model.0.forward(x)).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(scheduler.step(), model, gradients);
        }
        let state = State::new()
            .module("model", &model)
            .optimizer("optimizer", &optimizer, &model)
            .scheduler("scheduler", &scheduler)
            .value("done", &(done + steps));
        checkpoints.save(step, state).expect("it can be saved");
    }
}

type Program = fn(&Path, &str, usize, u64);
const LINES: [(&str, Program); 2] = [("0.22", current::train), ("0.21", before::train)];

fn folder(name: &str) -> std::path::PathBuf {
    let folder = format!("burn-dist-lines-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::remove_dir_all(&folder).ok();
    folder
}

/// Returns how checkpoints differ: in values, and in what their metadata say.
fn differences(folder: &Path, first: u64, second: u64) -> String {
    let checkpoints = Checkpoints::at(folder);
    let open = |step| checkpoints.open(step).expect("it was saved");
    let (first, second) = (open(first), open(second));
    let difference = tools::diff(&first, &second).expect("they can be read");
    let texts = [&first, &second].map(|it| filled(Value::Object(it.manifest().metadata.clone())));
    match difference.is_empty() && texts[0] == texts[1] {
        true => String::new(),
        false => format!("{difference:?}\n{:?}\n{:?}", texts[0], texts[1]),
    }
}

/// Returns a text without what is null.
fn filled(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let filled = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                filled
                    .map(|(key, value)| (key, self::filled(value)))
                    .collect(),
            )
        }
        value => value,
    }
}

#[test]
fn what_one_line_saves_the_other_loads_and_saves_alike() {
    for (name, save) in LINES {
        for (other, load) in LINES {
            let folder = folder(&format!("{name}-{other}"));
            save(&folder, "fsdp=2", STEPS, 1);
            // Without a step, on another mesh.
            load(&folder, "tp=2", 0, 2);
            assert_eq!(
                differences(&folder, 1, 2),
                "",
                "saved by {name}, loaded by {other}"
            );
            std::fs::remove_dir_all(&folder).expect("it was made");
        }
    }
}

#[test]
fn training_goes_on_as_if_nobody_had_stopped() {
    for (name, start) in LINES {
        let whole = folder(&format!("{name}-whole"));
        start(&whole, "fsdp=2", 2 * STEPS, 2);
        let parts = folder(&format!("{name}-parts"));
        start(&parts, "fsdp=2", STEPS, 1);
        start(&parts, "fsdp=2", STEPS, 2);
        let open = |folder: &Path| Checkpoints::at(folder).open(2).expect("it was saved");
        let difference = tools::diff(&open(&whole), &open(&parts)).expect("they can be read");
        assert!(difference.is_empty(), "{name}: {difference:?}");
        for folder in [whole, parts] {
            std::fs::remove_dir_all(&folder).expect("it was made");
        }
    }
}
