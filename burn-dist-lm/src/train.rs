//! The training loop of `pretrain` and `finetune`: plain Burn, with no word about ranks.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, bail};
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::launch::Stop;
use burn_dist::optim::{clip_grad_norm, grad_norm};
use burn_dist::train::StepFigures;
use burn_dist::train::metrics::Event;

use crate::checkpoints::{self, Keeper};
use crate::data::batch::{Batch, BatchSource, BatchTensors};
use crate::lost::Lost;
use crate::mesh::{Account, Mesh};
use crate::metrics::{RunMetrics, StepRow};
use crate::model::Llama;
use crate::optimizer::OptimizerConfig;
use crate::progress::Progress;
use crate::report::{RankMemory, StepTimes, Traffic, median};
use crate::schedule::Schedule;
use crate::validation::Validation;

/// Steps left out of the measured speed: the first ones plan, allocate and fill caches.
const WARM_UP_STEPS: usize = 3;

/// The result of a phase of training.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Loss of each step.
    pub losses: Vec<f32>,
    /// Wall time of each step, from the batch to the loss on the host.
    pub step_ms: Vec<f64>,
    /// Positions of a step's rows.
    pub tokens_per_step: usize,
    /// Collectives of the last step.
    pub collectives: BTreeMap<String, Traffic>,
    /// Memory of each rank of this process after the last step, the optimizer's state included.
    pub ranks: Vec<RankMemory>,
    /// How each of them spent each step.
    pub times: Vec<StepTimes>,
    /// Losses on what is held out, each after so many steps.
    pub validation: Vec<(usize, f32)>,
    /// The meshes of the run, each with the first of its steps of all phases.
    pub meshes: Vec<(usize, String)>,
    /// True if the phase was stopped before its last step.
    pub interrupted: bool,
}

impl Trace {
    /// The median step time after warm-up; of all steps if there were no more.
    pub fn step_ms_median(&self) -> Option<f64> {
        let steady = self
            .step_ms
            .get(WARM_UP_STEPS..)
            .filter(|steps| !steps.is_empty());
        median(steady.unwrap_or(&self.step_ms))
    }

    /// Tokens per second at the median step time.
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.step_ms_median()
            .map(|ms| self.tokens_per_step as f64 / ms * 1e3)
    }
}

/// Returns the cross entropy of `logits` against `targets`: the mean, or the sum weighted by `weights`.
///
/// Only sums of one number per token are taken over the vocabulary, so logits that are sharded over it stay so.
///
/// # Shapes
/// `logits`: `[b, s, v]`; `targets`, `weights`: `[b, s]`; output: `[1]`.
pub fn cross_entropy(
    logits_bsv: Tensor<3>,
    targets_bs: Tensor<2, Int>,
    weights_bs: Option<Tensor<2>>,
) -> Tensor<1> {
    let [b, s, v] = logits_bsv.dims();
    let logits_tv = logits_bsv.reshape([b * s, v]);
    // Any shift leaves the value alone: the largest logit keeps the exponentials finite and needs no gradient.
    let shift_t1 = logits_tv.clone().detach().max_dim(1);
    let shifted_tv = logits_tv - shift_t1;
    let target_t1 = shifted_tv.clone().gather(1, targets_bs.reshape([b * s, 1]));
    let losses_t1 = shifted_tv.exp().sum_dim(1).log() - target_t1;
    match weights_bs {
        Some(weights_bs) => (losses_t1 * weights_bs.reshape([b * s, 1])).sum(),
        None => losses_t1.mean(),
    }
}

/// How a step is taken, besides the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// Microbatches that a batch is cut into; has to divide its rows.
    pub accumulate: usize,
    /// The largest norm of all gradients together.
    pub clip: Option<f32>,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            accumulate: 1,
            clip: None,
            optimizer: OptimizerConfig::default(),
        }
    }
}

/// Takes one optimizer step; returns the model and the loss before it, not yet read.
pub fn step(
    model: Llama,
    optim: &mut ModuleOptimizer,
    batch: &Batch,
    rate: f64,
    device: &Device,
) -> (Llama, Tensor<1>) {
    step_with(model, optim, batch, Recipe::default(), rate, device)
}

/// Does the same as [`step`], by a recipe: gradients of the microbatches are those of the batch, to rounding.
///
/// # Panics
/// If the number of microbatches does not divide that of rows.
pub fn step_with(
    model: Llama,
    optim: &mut ModuleOptimizer,
    batch: &Batch,
    recipe: Recipe,
    rate: f64,
    device: &Device,
) -> (Llama, Tensor<1>) {
    let parts = batch.split(recipe.accumulate);
    let parts = parts.iter().map(|part| part.tensors(device)).collect();
    let (model, loss, _) = step_on(model, optim, parts, Norm::of(recipe.clip, false), rate);
    (model, loss)
}

/// The use of the norm of a step's gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Norm {
    /// It is not computed.
    Unknown,
    /// It is computed, and changes nothing.
    Known,
    /// It is at most this.
    Clipped(f32),
}

impl Norm {
    fn of(clip: Option<f32>, is_wanted: bool) -> Self {
        match clip {
            Some(max) => Self::Clipped(max),
            None if is_wanted => Self::Known,
            None => Self::Unknown,
        }
    }
}

/// Does the same as [`step_with`], on microbatches that are on the device; returns the norm of the gradients too, if it
/// is computed.
fn step_on(
    model: Llama,
    optim: &mut ModuleOptimizer,
    parts: Vec<BatchTensors>,
    norm: Norm,
    rate: f64,
) -> (Llama, Tensor<1>, Option<Tensor<1>>) {
    let count = parts.len();
    let mut accumulator = GradientsAccumulator::new();
    let mut sum: Option<Tensor<1>> = None;
    for part in parts {
        let logits = model.forward_packed(part.tokens, part.packed);
        let is_mean = part.weights.is_none();
        let mut loss = cross_entropy(logits, part.targets, part.weights);
        // Weights sum to 1 over all parts; a mean is that of its part alone.
        if count > 1 && is_mean {
            loss = loss / count as f64;
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        accumulator.accumulate(&model, gradients);
        let loss = loss.inner();
        sum = Some(match sum {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
    let mut gradients = accumulator.grads();
    let norm = match norm {
        Norm::Unknown => None,
        Norm::Known => Some(grad_norm(&model, &gradients)),
        Norm::Clipped(max) => {
            let (clipped, norm) = clip_grad_norm(&model, gradients, max);
            gradients = clipped;
            Some(norm)
        }
    };
    let sum = sum.expect("a batch has a part");
    (optim.step(rate, model, gradients), sum, norm)
}

/// A phase of training: its settings, and what shows, stops and records it.
pub struct Phase<'a> {
    /// The rates, and how many steps there are.
    pub schedule: Schedule,
    /// How a step is taken.
    pub recipe: Recipe,
    /// Shows how far it is.
    pub progress: &'a Progress,
    /// Ends it after the step in which it is asked.
    pub stop: &'a Stop,
    /// The state before it, for its checkpoints.
    pub before: &'a checkpoints::SoFar,
    /// The held-out texts.
    pub validation: Option<Validation<'a>>,
    /// Where its figures are written.
    pub metrics: &'a RunMetrics,
}

/// Trains for `schedule.steps` steps, or until `stop`; from a checkpoint, if `keeper` goes on from one of this phase.
///
/// # Errors
/// If the loss is no longer a number, or cannot be read; if a checkpoint cannot be read or written.
pub fn run(
    model: Llama,
    source: &mut dyn BatchSource,
    mut phase: Phase<'_>,
    device: &Device,
    mesh: &Mesh,
    keeper: &mut Keeper,
) -> anyhow::Result<(Llama, Trace)> {
    let Phase {
        schedule,
        recipe,
        progress,
        metrics,
        ..
    } = phase;
    let fresh = phase.before.clone();
    let begin = Event::new("phase").with("phase", fresh.phase.clone());
    metrics.event(begin.with("steps", schedule.steps));
    let (mut model, mut optim, mut so_far) =
        keeper.enter(fresh, model, recipe.optimizer.init(), source)?;
    so_far.go_on(&mesh.name());
    let mut trace = Trace {
        losses: so_far.losses.clone(),
        validation: so_far.validation.clone(),
        meshes: so_far.meshes.clone(),
        ..Trace::default()
    };
    let mut report = mesh.report();
    let mut before = Account::of(&report);
    trace.times = vec![StepTimes::default(); before.times.len()];
    let begun = trace.losses.len();
    for number in begun..schedule.steps {
        let (done, is_last) = (number + 1, number + 1 == schedule.steps);
        let held_out = phase.validation.as_mut();
        let held_out = held_out.filter(|held_out| held_out.is_due(done, is_last));
        let step = so_far.before.len() + done;
        let has_row = metrics.takes(step, is_last || held_out.is_some());
        let has_norm = has_row && metrics.takes_norm(step, is_last);
        let start = Instant::now();
        let batch = source.next_batch()?;
        let waiting_for_data = start.elapsed();
        let rate = schedule.at(number);
        let parts = batch.split(recipe.accumulate);
        let by_process = mesh.gives_rows();
        let parts = parts.iter().map(|part| part.enter(device, by_process));
        let parts = parts.collect::<Result<_, _>>()?;
        // The microbatches are planned together: ranks along pp work on different ones at a time.
        let hold = mesh.hold();
        let norm = Norm::of(recipe.clip, has_norm);
        let (next, loss, norm) = step_on(model, &mut optim, parts, norm, rate);
        drop(hold);
        model = next;
        // Reading the loss waits for the step; the norm is read along with it.
        let read = match norm.filter(|_| has_row) {
            Some(norm) => Tensor::cat(vec![loss, norm], 0),
            None => loss,
        };
        let read = read.try_into_data();
        let read = read.with_context(|| format!("step {step} failed"))?;
        let mut read = read.iter::<f32>();
        let loss = read.next().expect("a loss was read");
        let gradient_norm = read.next();
        let time = start.elapsed();

        trace.tokens_per_step = batch.batch * batch.seq;
        trace.losses.push(loss);
        trace.step_ms.push(time.as_secs_f64() * 1e3);
        let earlier = std::mem::replace(&mut report, mesh.report());
        let ranks = has_row.then(|| StepFigures::between(&earlier, &report));
        let after = Account::of(&report);
        trace.collectives = difference(&before.traffic, &after.traffic);
        let times = after.times.iter().zip(&before.times);
        for (steps, (after, before)) in trace.times.iter_mut().zip(times) {
            steps.push(&after.since(before));
        }
        before = after;
        let tokens_per_second = trace.tokens_per_second().unwrap_or(0.0);
        progress.step(done, loss, tokens_per_second, &before.memory);
        trace.interrupted = mesh.processes().stop(phase.stop)?;
        let validation = match held_out.filter(|_| loss.is_finite()) {
            Some(held_out) => {
                let found = held_out.loss(&model.valid(), recipe.accumulate, mesh)?;
                trace.validation.push((done, found.0));
                progress.validated(done, found.0);
                // What that did is no part of the next step.
                report = mesh.report();
                before = Account::of(&report);
                Some(found)
            }
            None => None,
        };
        if let Some(ranks) = ranks {
            let row = StepRow {
                step,
                loss,
                gradient_norm,
                rate,
                tokens: trace.tokens_per_step,
                time,
                waiting_for_data,
                validation,
            };
            metrics.row(&row, ranks, mesh.processes())?;
        }
        if !loss.is_finite() {
            progress.finish();
            let lost = Lost {
                step,
                loss,
                peak: schedule.peak,
                is_first: number == begun,
                ..Lost::default()
            };
            let (lost, events) = keeper.lost(lost);
            events.into_iter().for_each(|event| metrics.event(event));
            bail!("{lost}");
        }
        so_far.losses.push(loss);
        let is_last = trace.interrupted || is_last;
        if keeper.is_due(done, is_last) {
            so_far.position = Some(source.position()?);
            so_far.validation.clone_from(&trace.validation);
            // Whoever goes on from this checkpoint finds the figures of its steps.
            metrics.settle();
            let events = keeper.save(&model, &optim, &so_far, is_last)?;
            events.into_iter().for_each(|event| metrics.event(event));
        }
        if trace.interrupted {
            break;
        }
    }
    match trace.interrupted {
        true => progress.interrupted(trace.losses.len()),
        false => progress.finish(),
    }
    trace.ranks = before.memory;
    Ok((model, trace))
}

fn difference(
    before: &BTreeMap<String, Traffic>,
    after: &BTreeMap<String, Traffic>,
) -> BTreeMap<String, Traffic> {
    let of_kind = |(kind, after): (&String, &Traffic)| {
        let before = before.get(kind).copied().unwrap_or_default();
        let traffic = Traffic {
            count: after.count - before.count,
            bytes: after.bytes - before.bytes,
        };
        (traffic.count > 0).then(|| (kind.clone(), traffic))
    };
    after.iter().filter_map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoints::{self, Keeper};
    use crate::cli::{AxesArgs, MeshArgs};
    use crate::data::batch::RandomTokens;
    use crate::data::batch::{Position, in_samples};
    use crate::data::rng::Rng;
    use crate::model::LlamaConfig;
    use crate::optimizer::optimizer;
    use burn::tensor::{Device, TensorData, Tolerance};
    use burn_dist::Accumulation;
    use burn_dist::data::Stream;
    use burn_dist::layout::Rows;

    /// The same batch at every step: what a model can learn by heart.
    struct Repeat(Batch);

    impl BatchSource for Repeat {
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
            before: &checkpoints::SoFar::default(),
            validation: None,
            metrics: &RunMetrics::none(),
        };
        let keeper = &mut Keeper::none();
        let ran = run(model, &mut repeat(), phase, mesh.device(), mesh, keeper);
        ran.unwrap().1
    }

    #[test]
    fn the_loss_falls() {
        let mesh = Mesh::open(&devices(Some("fsdp=2,tp=2"))).unwrap();
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

    /// torchtitan counts 6 flops for each token and weight of a matrix, and 12 x layers x heads x width x tokens for
    /// attention (`torchtitan/models/llama3/model/args.py`, `get_nparams_and_flops`): all pairs of a query and a key,
    /// and no score twice. Here keys that a causal mask hides are left out, and the backward makes the scores again.
    #[test]
    fn the_flops_of_a_step_are_those_of_the_formula() {
        let config = LlamaConfig::test();
        let head_dim = config.dim / config.num_heads;
        let kv_dim = head_dim * config.num_kv_heads;
        let attention = 2 * config.dim * config.dim + 2 * config.dim * kv_dim;
        let layer = attention + 3 * config.dim * config.hidden_dim;
        let weights = config.num_layers * layer + config.dim * config.vocab;
        let (rows, seq) = (4.0, 8.0);
        let products = 6.0 * weights as f64 * rows * seq;
        let of_torchtitan = 12.0 * (config.num_layers * config.dim) as f64 * seq * rows * seq;
        let pairs = (seq + 1.0) / (2.0 * seq);
        // Rotary positions turn queries and keys by products here, and their gradients back.
        let turned = config.num_layers * (config.dim + kv_dim) * head_dim;
        let turns = 4.0 * turned as f64 * rows * seq;
        // Scores that the backward of attention makes again are work of the hardware, not of the model.
        let expected = products + turns + of_torchtitan * pairs;
        for axes in ["1", "fsdp=2,tp=2", "pp=2", "dp=2,cp=2"] {
            let mesh = Mesh::open(&devices(Some(axes))).unwrap();
            let model = config.init(mesh.device());
            let model = mesh.parallelize(model).unwrap();
            let batch = repeat().next_batch().unwrap();
            let mut optim = optimizer();
            let before = mesh.report();
            let (_, loss) = step(model, &mut optim, &batch, 1e-3, mesh.device());
            let _ = loss.into_data();
            let step = StepFigures::between(&before, &mesh.report());
            assert_eq!(step.model_flops, expected, "{axes}");
        }
    }

    #[test]
    fn microbatches_and_clipping_change_nothing_but_rounding() {
        let losses = |axes: Option<&str>, reduce: Accumulation, recipe: Recipe| -> Vec<f32> {
            let mesh = Mesh::open(&MeshArgs {
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
                let (next, loss) = step_with(
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
            (0..8).map(step).collect()
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
            let mesh = Mesh::open(&devices(axes)).unwrap();
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
                let (next, loss) = step(model.clone(), &mut optim, &batch, 1e-2, mesh.device());
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
        let mesh = Mesh::open(&MeshArgs::default()).unwrap();
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
            Tensor::<2, Int>::from_data(
                TensorData::new(target_ids.clone(), [2, 2]),
                &Device::flex(),
            )
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

    #[test]
    fn traffic_of_a_step_is_the_difference() {
        let traffic = |count, bytes| Traffic { count, bytes };
        let before = BTreeMap::from([("all_reduce".to_string(), traffic(2, 64))]);
        let mut after = before.clone();
        assert!(difference(&before, &after).is_empty());
        after.insert("all_gather".to_string(), traffic(1, 8));
        after.insert("all_reduce".to_string(), traffic(5, 100));
        let expected = [
            ("all_gather".to_string(), traffic(1, 8)),
            ("all_reduce".to_string(), traffic(3, 36)),
        ];
        assert_eq!(difference(&before, &after), BTreeMap::from(expected));
    }
}
