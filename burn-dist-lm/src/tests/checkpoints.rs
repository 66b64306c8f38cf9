//! Checkpoints of runs with a decoder.

use std::path::Path;

use burn_dist::checkpoint::tools;
use burn_dist::launch::Stop;
use burn_dist::layout::Rows;
use burn_dist::trainer::args::{AxesArgs, CheckpointArgs, MeshArgs, Resume};
use burn_dist::trainer::batch::{BatchSource, Position};
use burn_dist::trainer::checkpoints::{Described, Keeper, SoFar};
use burn_dist::trainer::exit::exit_code;
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::model::Model;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::{Phase, run};
use burn_dist::trainer::schedule::Schedule;
use burn_dist::trainer::step::Recipe;
use burn_dist::trainer::voice::in_one_line;

use crate::model::{
    Biases, Experts, Llama, LlamaConfig, Options, RopeConfig, RopeScaling, Size, Window,
};
use burn_dist::train::rng::Rng;
use burn_dist::trainer::tokens::{Batch, RandomTokens};

/// Random tokens; the run is stopped in the step of one of its batches.
struct Stopping<'a> {
    source: RandomTokens,
    left: usize,
    stop: &'a Stop,
}

impl BatchSource for Stopping<'_> {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.stop.ask();
        }
        self.source.next_batch()
    }

    fn position(&self) -> anyhow::Result<Position> {
        self.source.position()
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        self.source.resume(position)
    }
}

/// Losses of a run of six steps with so many rows, which is stopped after `steps`.
fn train(axes: &str, root: &Path, rows: usize, steps: usize) -> anyhow::Result<Vec<f32>> {
    let how = How {
        rows,
        steps,
        resume: Resume::Auto,
        rate: 1e-2,
        keep: 9,
    };
    train_as(axes, root, how)
}

/// How a run of six steps goes.
#[derive(Clone, Copy)]
struct How {
    rows: usize,
    /// After how many it is stopped.
    steps: usize,
    resume: Resume,
    rate: f64,
    keep: usize,
}

fn train_as(axes: &str, root: &Path, how: How) -> anyhow::Result<Vec<f32>> {
    let How {
        rows,
        steps,
        resume,
        rate,
        keep,
    } = how;
    let axes = AxesArgs {
        mesh: Some(axes.parse()?),
        ..AxesArgs::default()
    };
    let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes))?;
    mesh.device().seed(5);
    let args = CheckpointArgs {
        checkpoint: Some(root.to_path_buf()),
        every: 2,
        keep,
        resume,
    };
    let mut keeper = Keeper::open(&args, Some(root), mesh.device())?;
    let model = mesh.parallelize(LlamaConfig::test().init(mesh.device()))?;
    let stop = Stop::new();
    let mut source = Stopping {
        source: RandomTokens {
            batch: rows,
            seq: 8,
            vocab: 64,
            rng: Rng::new(1, 2),
            held: Rows::all(rows),
        },
        left: steps,
        stop: &stop,
    };
    let phase = Phase {
        schedule: Schedule::new(rate, 6),
        recipe: Recipe::default(),
        progress: &Progress::quiet(),
        stop: &stop,
        before: &SoFar::of("pretrain"),
        validation: None,
        metrics: &RunMetrics::none(),
    };
    let device = mesh.device();
    let (_, trace) = run(model, &mut source, phase, device, &mesh, &mut keeper)?;
    Ok(trace.losses)
}

/// Every number of a model but for that of its first values, changed one at a time.
#[test]
fn another_model_is_named_by_what_differs() {
    let config = LlamaConfig::test();
    let begun = Described::new::<Llama>("tiny", &config);
    let saved = serde_json::to_string(&begun).unwrap();
    let begun: Described = serde_json::from_str(&saved).unwrap();
    begun
        .check(&Described::new::<Llama>("elsewhere", &config), Llama::WORDS)
        .unwrap();
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 64,
    };
    let rope = |theta, scaling| RopeConfig { theta, scaling };
    let window = Window {
        keys: 8,
        layers: [0, 1].into(),
    };
    let experts = Experts {
        num: 4,
        top_k: 2,
        hidden_dim: 8,
    };
    let with = |change: &dyn Fn(&mut Options)| {
        let mut other = config.clone();
        change(&mut other.options);
        other
    };
    let others = [
        (
            LlamaConfig {
                dim: 32,
                ..config.clone()
            },
            "width 32 instead of 16",
        ),
        (
            LlamaConfig {
                num_layers: 3,
                ..config.clone()
            },
            "layers 3 instead of 2",
        ),
        // Weights of the same shapes.
        (
            LlamaConfig {
                num_heads: 8,
                ..config.clone()
            },
            "heads 8 instead of 4",
        ),
        (
            LlamaConfig {
                num_kv_heads: 1,
                ..config.clone()
            },
            "key/value heads 1 instead of 2",
        ),
        (
            LlamaConfig {
                hidden_dim: 64,
                ..config.clone()
            },
            "feed-forward width 64 instead of 32",
        ),
        (
            LlamaConfig {
                vocab: 65,
                ..config.clone()
            },
            "vocabulary 65 instead of 64",
        ),
        (
            LlamaConfig {
                rope: rope(7.0, None),
                ..config.clone()
            },
            "base of rotary positions 7 instead of 500000",
        ),
        (
            LlamaConfig {
                rope: rope(500_000.0, Some(scaling)),
                ..config.clone()
            },
            "from 1 to 4 turns instead of none",
        ),
        (
            LlamaConfig {
                norm_eps: 0.1,
                ..config.clone()
            },
            "epsilon of norms 0.1 instead of 0.00001",
        ),
        (
            LlamaConfig {
                tied: true,
                ..config.clone()
            },
            "output the embedding instead of a matrix of its own",
        ),
        (
            with(&|it| it.head_dim = Some(8)),
            "width of heads 8 instead of nothing",
        ),
        (
            with(&|it| it.biases = Biases::Inputs),
            "biases of queries, keys and values instead of nothing",
        ),
        (
            with(&|it| it.head_norms = true),
            "norms of queries and keys yes instead of nothing",
        ),
        (
            with(&|it| it.window = Some(window.clone())),
            "window 8 keys in layers 0, 1 instead of nothing",
        ),
        (
            with(&|it| it.unturned = [1].into()),
            "layers without rotary positions 1 instead of nothing",
        ),
        (
            with(&|it| it.experts = Some(experts.clone())),
            "experts 2 of 4, of width 8 instead of nothing",
        ),
    ];
    let all = with(&|it| {
        let family = it.family;
        *it = Options {
            family,
            head_dim: Some(8),
            biases: Biases::All,
            head_norms: true,
            window: Some(window.clone()),
            unturned: [1].into(),
            experts: Some(experts.clone()),
        };
    });
    assert_eq!(others.len(), all.facts().len());
    // What it was begun with, and is not there.
    let begun_with_all = Described::new::<Llama>("tiny", &all);
    let error = begun_with_all.check(&begun, Llama::WORDS).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("width of heads nothing instead of 8"),
        "{error}"
    );
    for (other, expected) in others {
        let error = begun
            .check(&Described::new::<Llama>("S", &other), Llama::WORDS)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("it was begun with the model tiny, and goes on with S, which has "),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.matches(" instead of ").count(), 1, "{error}");
    }
    let small = Described::new::<Llama>("S", &Size::S.config());
    let error = Described::new::<Llama>("tiny", &Size::Tiny.config())
        .check(&small, Llama::WORDS)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("width 256 instead of 128, heads 8 instead of 4, "),
        "{error}"
    );
}

#[test]
fn the_meshes_of_a_run_are_those_on_which_it_did_steps() {
    let mut so_far = SoFar::of("pretrain");
    let mut left = |mesh: &str, steps: usize| {
        so_far.go_on(mesh);
        so_far.losses.extend(vec![1.0; steps]);
        so_far.meshes.clone()
    };
    let named = |all: &[(usize, &str)]| -> Vec<(usize, String)> {
        all.iter()
            .map(|(first, mesh)| (*first, mesh.to_string()))
            .collect()
    };
    assert_eq!(left("fsdp=2", 3), named(&[(1, "fsdp=2")]));
    assert_eq!(left("fsdp=2", 1), named(&[(1, "fsdp=2")]));
    assert_eq!(left("tp=2", 0), named(&[(1, "fsdp=2"), (5, "tp=2")]));
    assert_eq!(left("fsdp=2", 2), named(&[(1, "fsdp=2")]));
    assert_eq!(left("pp=2", 1), named(&[(1, "fsdp=2"), (7, "pp=2")]));
}

#[test]
fn a_stopped_run_goes_on_as_if_it_had_not_been() {
    for axes in ["fsdp=2", "fsdp=2,tp=2", "pp=2"] {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let expected = train(axes, whole.path(), 4, 9).unwrap();
        assert_eq!(expected.len(), 6);
        assert_eq!(train(axes, parts.path(), 4, 1).unwrap(), expected[..1]);
        assert_eq!(train(axes, parts.path(), 4, 3).unwrap(), expected[..4]);
        assert_eq!(train(axes, parts.path(), 4, 9).unwrap(), expected, "{axes}");
        let last = |root: &Path| {
            burn_dist::checkpoint::Checkpoint::open(root.join("step-0000000006")).unwrap()
        };
        let found = tools::diff(&last(parts.path()), &last(whole.path())).unwrap();
        assert_eq!(found.changed, []);
        // Nothing is left to do.
        assert_eq!(train(axes, parts.path(), 4, 9).unwrap(), expected);
    }
}

#[test]
fn another_mesh_goes_on_with_the_same_data() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = train("fsdp=2", whole.path(), 4, 9).unwrap();
    train("fsdp=2", parts.path(), 4, 2).unwrap();
    train("tp=2", parts.path(), 4, 2).unwrap();
    let found = train("pp=2", parts.path(), 4, 9).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            (found - expected).abs() < 2e-4 * expected,
            "{found}, {expected}"
        );
    }
}

#[test]
fn a_folder_that_does_not_fit_is_refused() {
    let root = tempfile::tempdir().unwrap();
    train("fsdp=2", root.path(), 4, 2).unwrap();
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = train("fsdp=2", &file, 4, 2).unwrap_err().to_string();
    assert!(error.starts_with("cannot keep checkpoints in "), "{error}");
    let mesh = Mesh::open::<Llama>(&MeshArgs::default()).unwrap();
    let args = CheckpointArgs {
        checkpoint: Some(root.path().to_path_buf()),
        every: 2,
        keep: 1,
        resume: Resume::Never,
    };
    let refused = Keeper::open(&args, Some(root.path()), mesh.device())
        .err()
        .unwrap();
    assert!(
        refused
            .to_string()
            .contains("go on from there with --resume auto"),
        "{refused}"
    );
}

/// One line of why a run does not go on.
fn refused(root: &Path, resume: Resume) -> String {
    let how = How {
        rows: 4,
        steps: 9,
        resume,
        rate: 1e-2,
        keep: 9,
    };
    let error = train_as("fsdp=2", root, how).expect_err("it does not go on");
    in_one_line(&error)
}

fn names(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_run_goes_on_from_the_step_that_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let expected = train("fsdp=2", root.path(), 4, 9).unwrap();
    let error = refused(root.path(), Resume::At(3));
    assert!(
        error.contains("which has those of steps 2, 4, 6"),
        "{error}"
    );
    let how = How {
        rows: 4,
        steps: 1,
        resume: Resume::At(2),
        rate: 1e-2,
        keep: 9,
    };
    // The same step again; those after it are done and saved again, and the old ones are still there.
    assert_eq!(train_as("fsdp=2", root.path(), how).unwrap(), expected[..3]);
    let found = names(root.path());
    let steps = [
        "aside-step-0000000004",
        "aside-step-0000000006",
        "checkpoints.lock",
        "step-0000000002",
        "step-0000000003",
    ];
    assert_eq!(found, steps);
    assert_eq!(train("fsdp=2", root.path(), 4, 9).unwrap(), expected);
}

#[test]
fn a_damaged_checkpoint_names_the_one_before_it() {
    type Damage = fn(&Path);
    let damages: [Damage; 2] = [
        // A manifest that is JSON as before; values.
        |step| {
            let path = step.join("manifest.json");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, text.replacen("fsdp", "fsdq", 1)).unwrap();
        },
        |step| {
            let path = step.join("00001-of-00002.safetensors");
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        },
    ];
    for damage in damages {
        let root = tempfile::tempdir().unwrap();
        let expected = train("fsdp=2", root.path(), 4, 9).unwrap();
        damage(&root.path().join("step-0000000006"));
        let error = refused(root.path(), Resume::Auto);
        assert!(error.contains("--resume 4 goes on from there"), "{error}");
        assert!(names(root.path()).contains(&"step-0000000006".to_string()));
        let how = How {
            rows: 4,
            steps: 9,
            resume: Resume::At(4),
            rate: 1e-2,
            keep: 9,
        };
        assert_eq!(train_as("fsdp=2", root.path(), how).unwrap(), expected);
    }
}

#[test]
fn a_checkpoint_of_values_that_are_no_numbers_takes_no_place() {
    let root = tempfile::tempdir().unwrap();
    train("fsdp=2", root.path(), 4, 2).unwrap();
    let how = How {
        rows: 4,
        steps: 1,
        resume: Resume::Auto,
        rate: f64::INFINITY,
        keep: 1,
    };
    // The loss of step 3 is that of the weights before it, which the step spoils.
    train_as("fsdp=2", root.path(), how).unwrap();
    let found = names(root.path());
    let both = ["checkpoints.lock", "step-0000000002", "step-0000000003"];
    assert_eq!(found, both);
    let error = refused(root.path(), Resume::Auto);
    assert!(
        error.contains("of step 3, has ") && error.contains(" NaN or infinite values"),
        "{error}"
    );
    assert!(error.contains("--resume 2 goes on from there"), "{error}");
    // If it is asked for all the same, the rate is not blamed.
    let error = refused(root.path(), Resume::At(3));
    assert!(
        error.starts_with("the loss of step 4 is NaN: the checkpoint of step 3 has "),
        "{error}"
    );
    assert!(!error.contains("lower --lr"), "{error}");
    assert!(error.contains("--resume 2 goes on from there"), "{error}");
}

#[test]
fn two_programs_do_not_keep_checkpoints_in_one_folder() {
    let root = tempfile::tempdir().unwrap();
    let mesh = Mesh::open::<Llama>(&MeshArgs::default()).unwrap();
    let args = CheckpointArgs {
        checkpoint: Some(root.path().to_path_buf()),
        every: 2,
        keep: 1,
        resume: Resume::Auto,
    };
    let open = || Keeper::open(&args, Some(root.path()), mesh.device());
    let first = open().unwrap();
    let error = open().err().expect("it is taken");
    assert_eq!(exit_code(&error), 78);
    let error = in_one_line(&error);
    let holder = format!("process {}", std::process::id());
    assert!(
        error.contains(&holder) && error.contains("choose another"),
        "{error}"
    );
    drop(first);
    open().unwrap();
}
