//! Training of a decoder: what the loop, microbatches and clipping do to its losses.

use burn::tensor::{Device, Int, Tensor, TensorData, Tolerance};
use burn_dist::Accumulation;
use burn_dist::data::Stream;
use burn_dist::launch::Stop;
use burn_dist::layout::Rows;
use burn_dist::train::StepFigures;
use burn_dist::trainer::args::{AxesArgs, MeshArgs};
use burn_dist::trainer::batch::{BatchSource, Position, in_samples};
use burn_dist::trainer::checkpoints::{Keeper, SoFar};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::model::Model;
use burn_dist::trainer::optimizer::optimizer;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::{Phase, Trace, run};
use burn_dist::trainer::schedule::Schedule;
use burn_dist::trainer::step::{self, Recipe};

use crate::model::{Experts, Llama, LlamaConfig, Options, Window};
use crate::train::cross_entropy;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::tokens::{Batch, RandomTokens};

/// The same batch at every step: what a model can learn by heart.
struct Repeat(Batch);

impl BatchSource for Repeat {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        Ok(self.0.clone())
    }

    fn position(&self) -> anyhow::Result<Position> {
        Ok(Position::Samples(repeated()))
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        in_samples(position, &repeated().stream).map(drop)
    }
}

/// The only place in a batch that is always the same.
fn repeated() -> burn_dist::data::Position {
    let stream = Stream {
        samples: 1,
        seed: None,
        fingerprint: None,
    };
    burn_dist::data::Position {
        epoch: 0,
        sample: 0,
        stream,
    }
}

fn devices(axes: Option<&str>) -> MeshArgs {
    let axes = AxesArgs {
        mesh: axes.map(|axes| axes.parse().unwrap()),
        ..AxesArgs::default()
    };
    axes.into()
}

fn repeat() -> Repeat {
    Repeat(
        RandomTokens {
            batch: 4,
            seq: 8,
            vocab: 64,
            rng: Rng::new(0, 0),
            held: Rows::all(4),
        }
        .next_batch()
        .unwrap(),
    )
}

fn thirty_steps(model: Llama, mesh: &Mesh, stop: &Stop) -> Trace {
    let phase = Phase {
        schedule: Schedule::new(1e-2, 30),
        recipe: Recipe::default(),
        progress: &Progress::quiet(),
        stop,
        before: &SoFar::default(),
        validation: None,
        metrics: &RunMetrics::none(),
    };
    let keeper = &mut Keeper::none();
    let ran = run(model, &mut repeat(), phase, mesh.device(), mesh, keeper);
    ran.unwrap().1
}

#[test]
fn the_loss_falls() {
    let mesh = Mesh::open::<Llama>(&devices(Some("fsdp=2,tp=2"))).unwrap();
    mesh.device().seed(0);
    let model = LlamaConfig::test().init(mesh.device());
    let model = mesh.parallelize(model).unwrap();
    let trace = thirty_steps(model, &mesh, &Stop::new());
    assert_eq!((trace.losses.len(), trace.interrupted), (30, false));
    assert_eq!(trace.tokens_per_step, 32);
    let (first, last) = (trace.losses[0], trace.losses[29]);
    assert!(
        (3.5..6.0).contains(&first),
        "a fresh model knows nothing (ln 64 is 4.16): {first}"
    );
    assert!(last < first * 0.5, "{first} to {last}");
}

/// Scores that the backward of attention makes again are work of the hardware, not of the model.
#[test]
fn the_flops_of_a_step_are_those_of_the_formula() {
    let window = Window {
        keys: 2,
        layers: [1].into(),
    };
    let experts = Experts {
        num: 4,
        top_k: 2,
        hidden_dim: 8,
    };
    let all = [
        Options::default(),
        Options {
            head_dim: Some(8),
            window: Some(window),
            unturned: [0].into(),
            ..Options::default()
        },
        Options {
            experts: Some(experts),
            ..Options::default()
        },
    ];
    for options in all {
        let config = LlamaConfig {
            options,
            ..LlamaConfig::test()
        };
        let expected = Llama::flops(&config, &repeat().next_batch().unwrap()).unwrap();
        for axes in ["1", "fsdp=2,tp=2", "pp=2", "dp=2,cp=2"] {
            let mesh = Mesh::open::<Llama>(&devices(Some(axes))).unwrap();
            let model = config.init(mesh.device());
            let model = mesh.parallelize(model).unwrap();
            let batch = repeat().next_batch().unwrap();
            let mut optim = optimizer();
            let before = mesh.report();
            let (_, loss) = step::one(model, &mut optim, &batch, 1e-3, mesh.device());
            let _ = loss.into_data();
            let step = StepFigures::between(&before, &mesh.report());
            assert_eq!(step.model_flops, expected, "{axes}, {:?}", config.options);
        }
    }
}

#[test]
fn microbatches_and_clipping_change_nothing_but_rounding() {
    let losses = |axes: Option<&str>, reduce: Accumulation, recipe: Recipe| -> Vec<f32> {
        let mesh = Mesh::open::<Llama>(&MeshArgs {
            accumulate_reduce: reduce,
            ..devices(axes)
        })
        .unwrap();
        mesh.device().seed(0);
        let model = LlamaConfig::test().init(mesh.device());
        let mut model = mesh.parallelize(model).unwrap();
        let mut optim = optimizer();
        let batch = repeat().next_batch().unwrap();
        let step = |_| {
            let (next, loss) = step::one_with(
                model.clone(),
                &mut optim,
                &batch,
                recipe,
                1e-2,
                mesh.device(),
            );
            model = next;
            loss.into_scalar()
        };
        (0..4).map(step).collect()
    };
    for clip in [None, Some(0.3)] {
        let recipe = |accumulate| Recipe {
            accumulate,
            clip,
            ..Recipe::default()
        };
        let expected = losses(None, Accumulation::PerWindow, recipe(1));
        for axes in [None, Some("fsdp=2"), Some("fsdp=2,tp=2")] {
            for reduce in [Accumulation::PerStep, Accumulation::PerMicrobatch] {
                for accumulate in [2, 4] {
                    let found = losses(axes, reduce, recipe(accumulate));
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!(
                            (found - expected).abs() < 2e-4 * expected,
                            "{accumulate} on {axes:?}, {reduce}, clip {clip:?}: {found}, {expected}"
                        );
                    }
                }
            }
        }
    }
    let free = losses(None, Accumulation::PerWindow, Recipe::default());
    let clipped = losses(
        None,
        Accumulation::PerWindow,
        Recipe {
            clip: Some(1e-3),
            ..Recipe::default()
        },
    );
    assert_ne!(free, clipped, "a small norm shows");
}

#[test]
fn an_embedding_that_is_the_output_too_trains_alike_on_every_mesh() {
    let losses = |axes: Option<&str>| -> Vec<f32> {
        let mesh = Mesh::open::<Llama>(&devices(axes)).unwrap();
        mesh.device().seed(0);
        let config = LlamaConfig {
            tied: true,
            ..LlamaConfig::test()
        };
        let model = config.init(mesh.device());
        let mut model = mesh.parallelize(model).unwrap();
        let mut optim = optimizer();
        let batch = repeat().next_batch().unwrap();
        let step = |_| {
            let (next, loss) = step::one(model.clone(), &mut optim, &batch, 1e-2, mesh.device());
            model = next;
            loss.into_scalar()
        };
        (0..5).map(step).collect()
    };
    let expected = losses(None);
    assert!(expected[4] < 0.9 * expected[0], "{expected:?}");
    for axes in ["fsdp=2", "tp=2", "fsdp=2,tp=2"] {
        let found = losses(Some(axes));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 2e-4 * expected,
                "{axes}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn a_stopped_run_ends_after_its_step() {
    let mesh = Mesh::open::<Llama>(&MeshArgs::default()).unwrap();
    let model = LlamaConfig::test().init(mesh.device());
    let stop = Stop::new();
    stop.ask();
    let trace = thirty_steps(model, &mesh, &stop);
    assert_eq!((trace.losses.len(), trace.interrupted), (1, true));
}

#[test]
fn cross_entropy_agrees_with_its_definition() {
    let logits = [
        [1.0_f32, 2.0, 0.5],
        [-1.0, 100.0, 3.0],
        [0.0, 0.0, 0.0],
        [5.0, 4.0, 3.0],
    ];
    let targets = [2_usize, 1, 0, 2];
    let weights = [0.5_f32, 0.25, 0.25, 0.0];
    let losses: Vec<f64> = logits
        .iter()
        .zip(targets)
        .map(|(row, target)| {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            sum.ln() - f64::from(row[target])
        })
        .collect();
    let mean = losses.iter().sum::<f64>() / 4.0;
    let weighted: f64 = losses
        .iter()
        .zip(weights)
        .map(|(loss, weight)| loss * f64::from(weight))
        .sum();

    let logits = || Tensor::<2>::from_data(logits, &Device::flex()).reshape([2, 2, 3]);
    let target_ids: Vec<i64> = targets.iter().map(|target| *target as i64).collect();
    let targets = || {
        Tensor::<2, Int>::from_data(TensorData::new(target_ids.clone(), [2, 2]), &Device::flex())
    };
    let weights = Tensor::from_data(TensorData::new(weights.to_vec(), [2, 2]), &Device::flex());
    let close = |got: Tensor<1>, expected: f64| {
        let expected = TensorData::from([expected as f32]);
        got.into_data()
            .assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
    };
    close(cross_entropy(logits(), targets(), None), mean);
    close(cross_entropy(logits(), targets(), Some(weights)), weighted);
}
