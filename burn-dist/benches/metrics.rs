//! What figures cost: training steps of the example's Llama, every second one with a row.
//!
//! A row costs in two places. Some have the norm of the gradients, which is computed and read in the step for the
//! figures alone: the median ratio of neighbouring steps says what that is, and the ratio of the fastest ones, which
//! others on the machine disturb less. Here every row has it, in a run one step of ten. Then the figures are made,
//! handed over and written: timed by itself, with the writer's part.
//!
//! `cargo bench -p burn-dist --bench metrics [-- S|M [AXES]]`

use std::time::{Duration, Instant};

use burn_dist::layout::Rows;
use burn_dist::train::StepFigures;
use burn_dist::train::metrics::Inbox;
use burn_dist::train::rng::Rng;
use burn_dist::train::run::RunFolder;
use burn_dist::trainer::args::{AxesArgs, MeshArgs};
use burn_dist::trainer::checkpoints::{Keeper, SoFar};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::metrics::{RunMetrics, StepRow, Wanted};
use burn_dist::trainer::processes::Processes;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::{self, Phase};
use burn_dist::trainer::schedule::Schedule;
use burn_dist::trainer::step::Recipe;
use burn_dist::trainer::tokens::RandomTokens;
use burn_dist_lm::model::{Llama, Size};

/// Pairs of steps that count; two go before them.
const PAIRS: usize = 20;
const ROWS: usize = 1000;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"));
    let args: Vec<String> = args.collect();
    let size = match args.first().map(String::as_str) {
        None | Some("S") => Size::S,
        Some("M") => Size::M,
        Some(other) => panic!("{other} is no size of this bench: S or M"),
    };
    let axes = args.get(1).map_or("1", String::as_str);
    let axes = AxesArgs {
        mesh: Some(axes.parse().expect("axes")),
        ..AxesArgs::default()
    };
    let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes)).expect("a mesh");
    mesh.device().seed(0);
    let model = size.config().init(mesh.device());
    let model = mesh.parallelize(model).expect("a layout");
    let (seq, batch) = size.default_seq_and_batch();
    let mut source = RandomTokens {
        batch,
        seq,
        vocab: size.config().vocab,
        rng: Rng::new(0, 2),
        held: Rows::all(batch),
    };

    let folder = tempfile::tempdir().expect("a folder");
    let run = RunFolder::at(folder.path());
    let rows = Wanted {
        every: 2,
        norm_every: 1,
        tflops_per_rank: Some(1.0),
    };
    let inbox = Some(Inbox::default());
    let written = RunMetrics::open(&run, inbox, 0, rows, &Processes::default());
    let written = written.expect("files");
    let phase = Phase {
        schedule: Schedule::new(3e-4, 2 * (PAIRS + 2)),
        recipe: Recipe::default(),
        progress: &Progress::new("", 0, 0),
        stop: &burn_dist::launch::Stop::new(),
        before: &SoFar::default(),
        validation: None,
        metrics: &written,
    };
    let keeper = &mut Keeper::none();
    let ran = run::run(model, &mut source, phase, mesh.device(), &mesh, keeper);
    let (_, trace) = ran.expect("a run");
    let pairs: Vec<&[f64]> = trace.step_ms.chunks_exact(2).skip(2).collect();
    let fastest = |index: usize| {
        pairs
            .iter()
            .map(|pair| pair[index])
            .fold(f64::MAX, f64::min)
    };
    let ratio = median(pairs.iter().map(|pair| pair[1] / pair[0]).collect());
    let (without, with) = (fastest(0), fastest(1));

    let report = mesh.report();
    let before = Instant::now();
    for step in 0..ROWS {
        let row = StepRow {
            step,
            gradient_norm: Some(1.0),
            time: Duration::from_secs(1),
            ..StepRow::default()
        };
        let ranks = StepFigures::between(&report, &report);
        written.row(&row, ranks, mesh.processes()).expect("a row");
    }
    written.settle();
    let row_ms = before.elapsed().as_secs_f64() * 1e3 / ROWS as f64;

    println!(
        "{} on mesh {}: steps of {without:.1} ms without a row and {with:.1} ms with one (the fastest of {PAIRS})",
        size.name(),
        mesh.name(),
    );
    println!(
        "the norm costs {:.2} % of a step (median of pairs), {:.2} % by the fastest",
        100.0 * (ratio - 1.0),
        100.0 * (with / without - 1.0)
    );
    println!(
        "a row takes {row_ms:.4} ms to make and write, {:.4} % of a step",
        100.0 * row_ms / without
    );
    let bytes = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let rows = (ROWS + PAIRS + 2) as u64;
    let boards = std::fs::read_dir(run.tensorboard())
        .expect("a folder")
        .flatten();
    let boards: u64 = boards.map(|entry| bytes(&entry.path())).sum();
    println!(
        "and {} bytes as a line, {} for TensorBoard",
        bytes(&run.metrics()) / rows,
        boards / rows
    );
}
