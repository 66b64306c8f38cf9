//! A training run with checkpoints, and what is asserted of them.

use super::prelude::*;

pub(super) const BLOCKS: usize = 4;
pub(super) const STEPS: usize = 4;
pub(super) const HALF: usize = 2;
pub(super) const ROWS: usize = 6;

pub(super) fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

pub(super) fn plan() -> Plan {
    let plan = sequence_parallel().first("embedding").stages("blocks");
    plan.unit("blocks").last("norm").last("output")
}

pub(super) fn tokens(step: usize, device: &Device) -> Tensor<2, Int> {
    let token = |i: usize| ((i * 7 + step * 13 + 3) % VOCAB) as i32;
    let tokens: Vec<i32> = (0..ROWS * SEQ).map(token).collect();
    Tensor::from_data(TensorData::new(tokens, [ROWS, SEQ]), device)
}

/// A training run with checkpoints.
pub(super) struct Run {
    pub device: Device,
    pub net: Net,
    pub optimizer: ModuleOptimizer,
    pub scheduler: ModuleLrScheduler,
    pub checkpoints: Checkpointer,
    pub step: usize,
    pub losses: Vec<f32>,
}

impl Run {
    /// Goes on from the latest checkpoint, if there is one.
    pub(super) fn start(mesh: DeviceMeshBuilder, root: &Path, optimizer: ModuleOptimizer) -> Self {
        let mesh = mesh.build().expect("a mesh");
        let device = mesh.device().autodiff();
        let net = Net::new(BLOCKS, &device);
        let scheduler = ComposedLrSchedulerConfig::new()
            .cosine(CosineAnnealingLrSchedulerConfig::new(1e-2, 7))
            .exponential(ExponentialLrSchedulerConfig::new(1.0, 0.97));
        let mut run = Self {
            net: net.parallelize_with(&mesh, &plan()).expect("a plan"),
            optimizer,
            scheduler: scheduler.init().expect("a schedule"),
            checkpoints: Checkpointer::at(root, &device).expect("a directory"),
            step: 0,
            losses: Vec::new(),
            device,
        };
        if let Some(saved) = run.checkpoints.latest().expect("a checkpoint") {
            run.net = saved.module("model", run.net).expect("the model");
            let optimizer = saved.optimizer("optimizer", run.optimizer, &run.net);
            run.optimizer = optimizer.expect("its optimizer");
            run.scheduler = saved
                .scheduler("scheduler", run.scheduler)
                .expect("its scheduler");
            run.step = saved.value("step").expect("a step");
            assert_eq!(run.step as u64, saved.step());
        }
        run
    }

    pub(super) fn train(mut self, steps: usize) -> Self {
        for _ in 0..steps {
            let input = tokens(self.step, &self.device);
            let logits = self.net.forward(input).reshape([ROWS * SEQ, VOCAB]);
            let targets = tokens(self.step + 1, &self.device).reshape([ROWS * SEQ]);
            let loss = CrossEntropyLossConfig::new().init(&self.device);
            let loss = loss.forward(logits, targets);
            let gradients = GradientsParams::from_grads(loss.backward(), &self.net);
            self.net = self
                .optimizer
                .step(self.scheduler.step(), self.net, gradients);
            self.losses.push(loss.into_scalar());
            self.step += 1;
        }
        self
    }

    pub(super) fn state(&self) -> State {
        State::new()
            .module("model", &self.net)
            .optimizer("optimizer", &self.optimizer, &self.net)
            .scheduler("scheduler", &self.scheduler)
            .value("step", &self.step)
    }

    pub(super) fn save(mut self) -> Self {
        let state = self.state();
        self.checkpoints
            .save(self.step as u64, state)
            .expect("saved");
        self
    }
}

/// Trains two steps on a mesh, and puts the checkpoint of them in both directories.
pub(super) fn begin(axes: &str, optimizer: ModuleOptimizer, roots: [&Path; 2]) {
    Run::start(builder(axes), roots[0], optimizer)
        .train(HALF)
        .save();
    copy(&latest(roots[0]), &roots[1].join("step-0000000002"));
}

pub(super) fn latest(root: &Path) -> PathBuf {
    let latest = Checkpoints::at(root).open_latest().expect("a checkpoint");
    latest.expect("one").1.path().to_path_buf()
}

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for file in std::fs::read_dir(from).expect("a directory") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("room");
    }
}

/// Asserts that the last checkpoints in two directories are the same, bit by bit.
pub(super) fn assert_equal(one: &Path, other: &Path, what: &str) {
    let open = |root: &Path| Checkpoints::at(root).open_latest().unwrap().expect("one").1;
    let (one, other) = (open(one), open(other));
    let found = tools::diff(&one, &other).expect("both are readable");
    assert_eq!(found.changed, [], "{what}");
    assert_eq!(
        found.num_equal,
        one.manifest().tensors.len(),
        "{what}: {found:?}"
    );
    for part in ["records", "values"] {
        let of =
            |checkpoint: &Checkpoint| checkpoint.manifest().metadata["burn-dist"][part].clone();
        assert_eq!(of(&one), of(&other), "{what}");
    }
}

pub(super) fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() < 2e-5 * expected.abs(),
            "{what}: {found} {expected}"
        );
    }
}
