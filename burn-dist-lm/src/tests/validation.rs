//! Validation of a decoder, and figures of its runs.

use burn::module::Module;
use burn::tensor::{Distribution, Tensor};
use burn_dist::launch::Stop;
use burn_dist::layout::Rows;
use burn_dist::train::metrics::Inbox;
use burn_dist::train::run::RunFolder;
use burn_dist::trainer::args::{AxesArgs, MeshArgs};
use burn_dist::trainer::batch::{BatchSource, Position};
use burn_dist::trainer::checkpoints::{Keeper, SoFar};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::metrics::{RunMetrics, Wanted};
use burn_dist::trainer::processes::Processes;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::{Phase, Trace, run};
use burn_dist::trainer::schedule::Schedule;
use burn_dist::trainer::step::Recipe;
use burn_dist::trainer::validation::Validation;

use crate::model::{Llama, LlamaConfig};
use burn_dist::train::rng::Rng;
use burn_dist::trainer::tokens::{Batch, PackedIds, RandomTokens};

fn tokens(seed: u64) -> RandomTokens {
    RandomTokens {
        batch: 4,
        seq: 8,
        vocab: 64,
        rng: Rng::new(seed, 2),
        held: Rows::all(4),
    }
}

/// Rows of which few positions are learnt: fewer in each batch than in the one before.
struct Sparse(RandomTokens);

impl BatchSource for Sparse {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        let Position::Samples(position) = self.0.position()? else {
            unreachable!("random tokens are samples");
        };
        let learnt = 9 - position.sample / 4;
        let mut batch = self.0.next_batch()?;
        let weight = |index| {
            if index < learnt {
                1.0 / learnt as f32
            } else {
                0.0
            }
        };
        batch.weights = Some((0..batch.tokens.len()).map(weight).collect());
        Ok(batch)
    }

    fn position(&self) -> anyhow::Result<Position> {
        self.0.position()
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        self.0.resume(position)
    }
}

/// Documents of half a row: two in each row, which do not see each other, or each in a row of its own.
struct Halves {
    source: RandomTokens,
    share_rows: bool,
}

impl BatchSource for Halves {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        let mut batch = self.source.next_batch()?;
        let (rows, half) = (batch.batch, batch.seq / 2);
        match self.share_rows {
            true => {
                let places = (0..rows).flat_map(|_| 0..batch.seq);
                batch.packed = Some(PackedIds {
                    documents: places.clone().map(|at| (at / half) as i32).collect(),
                    positions: places.map(|at| (at % half) as i32).collect(),
                });
            }
            false => {
                (batch.batch, batch.seq) = (2 * rows, half);
                batch.held = Rows::all(2 * rows);
            }
        }
        Ok(batch)
    }

    fn position(&self) -> anyhow::Result<Position> {
        self.source.position()
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        self.source.resume(position)
    }
}

fn open(axes: &str) -> (Mesh, Llama) {
    let axes = AxesArgs {
        mesh: Some(axes.parse().unwrap()),
        ..AxesArgs::default()
    };
    let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes)).unwrap();
    mesh.device().seed(3);
    let model = LlamaConfig::test().init(mesh.device());
    let model = mesh.parallelize(model).unwrap();
    (mesh, model)
}

/// Six steps; and what is drawn after them.
fn train(
    axes: &str,
    validation: Option<Validation<'_, Batch>>,
    metrics: &RunMetrics,
    accumulate: usize,
) -> (Trace, Vec<f32>) {
    let (mesh, model) = open(axes);
    let phase = Phase {
        schedule: Schedule::new(1e-2, 6),
        recipe: Recipe {
            accumulate,
            ..Recipe::default()
        },
        progress: &Progress::quiet(),
        stop: &Stop::new(),
        before: &SoFar::of("pretrain"),
        validation,
        metrics,
    };
    let (device, keeper) = (mesh.device(), &mut Keeper::none());
    let (_, trace) = run(model, &mut tokens(1), phase, device, &mesh, keeper).unwrap();
    let drawn = Tensor::<1>::random([4], Distribution::Default, device);
    (trace, drawn.into_data().try_to_vec().unwrap())
}

#[test]
fn validation_is_the_same_on_every_mesh_and_changes_nothing() {
    let mut expected: Option<Vec<(usize, f32)>> = None;
    for (axes, accumulate) in [("1", 1), ("fsdp=2", 1), ("tp=2", 2), ("pp=2", 2)] {
        let none = RunMetrics::none();
        let validation = Validation::new(Box::new(tokens(7)), 3, Some(2)).unwrap();
        let (trace, drawn) = train(axes, Some(validation), &none, accumulate);
        let (without, drawn_without) = train(axes, None, &none, accumulate);
        assert_eq!(trace.losses, without.losses, "{axes}");
        assert_eq!(drawn, drawn_without, "{axes}");
        let steps: Vec<usize> = trace.validation.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [2, 4, 6]);
        let expected = expected.get_or_insert(trace.validation.clone());
        for ((_, found), (_, expected)) in trace.validation.iter().zip(expected) {
            assert!(
                (found - *expected).abs() < 1e-4,
                "{axes}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn every_position_counts_alike_whatever_its_batch() {
    let (mesh, model) = open("fsdp=2");
    let model = model.valid();
    let losses = |batches, source: Box<dyn BatchSource<Batch = Batch>>| {
        let mut validation = Validation::new(source, batches, None).unwrap();
        let first = validation.loss(&model, 1, &mesh).unwrap().loss;
        // The same rows again.
        let again = validation.loss(&model, 1, &mesh).unwrap().loss;
        assert_eq!(first, again);
        f64::from(first)
    };
    let sparse = |batches: u64| {
        let mut source = Sparse(tokens(7));
        for _ in 0..batches {
            source.next_batch().unwrap();
        }
        Box::new(source)
    };
    let each = [0, 1, 2].map(|batch| losses(1, sparse(batch)));
    // Of 9, 8 and 7 positions.
    let mean = (9.0 * each[0] + 8.0 * each[1] + 7.0 * each[2]) / 24.0;
    let found = losses(3, sparse(0));
    assert!((found - mean).abs() < 1e-5, "{found}, {mean}: {each:?}");
}

#[test]
fn documents_that_share_rows_are_validated_as_they_are_trained() {
    let (mesh, model) = open("fsdp=2");
    let model = model.valid();
    let loss = |share_rows| {
        let source = Halves {
            source: tokens(7),
            share_rows,
        };
        let mut validation = Validation::new(Box::new(source), 2, None).unwrap();
        validation.loss(&model, 1, &mesh).unwrap().loss
    };
    let (together, alone) = (loss(true), loss(false));
    assert!((together - alone).abs() < 1e-5, "{together}, {alone}");
}

#[test]
fn figures_change_no_bit_of_a_run() {
    for axes in ["1", "fsdp=2,tp=2", "dp=2", "pp=2"] {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let rows = Wanted {
            every: 2,
            norm_every: 4,
            tflops_per_rank: None,
        };
        let (inbox, alone) = (Some(Inbox::default()), Processes::default());
        let metrics = RunMetrics::open(&run, inbox, 0, rows, &alone).unwrap();
        let (with, _) = train(axes, None, &metrics, 2);
        drop(metrics);
        let (without, _) = train(axes, None, &RunMetrics::none(), 2);
        assert_eq!(with.losses, without.losses, "{axes}");
        let lines = std::fs::read_to_string(run.metrics()).unwrap();
        let steps = lines.lines().filter(|line| line.contains("\"train/loss\""));
        assert_eq!(steps.count(), 3, "{lines}");
    }
}
