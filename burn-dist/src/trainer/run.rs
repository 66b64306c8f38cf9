//! The training loop: steps, validation, figures and checkpoints of a phase, with no word about ranks.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, bail};
use burn_core::tensor::{Device, Tensor};

use super::batch::{Batch, BatchSource};
use super::checkpoints::{Keeper, SoFar};
use super::lost::Lost;
use super::mesh::{Account, Mesh};
use super::metrics::{RunMetrics, StepRow};
use super::model::Model;
use super::progress::{Progress, Shown};
use super::report::{RankMemory, StepTimes, Traffic, median};
use super::schedule::Schedule;
use super::step::{Norm, Recipe, step};
use super::validation::Validation;
use crate::launch::Stop;
use crate::train::StepFigures;
use crate::train::metrics::Event;

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

/// A phase of training: its settings, and what shows, stops and records it.
pub struct Phase<'a, B> {
    /// The rates, and how many steps there are.
    pub schedule: Schedule,
    /// How a step is taken.
    pub recipe: Recipe,
    /// Shows how far it is.
    pub progress: &'a Progress,
    /// Ends it after the step in which it is asked.
    pub stop: &'a Stop,
    /// The state before it, for its checkpoints.
    pub before: &'a SoFar,
    /// The held-out texts.
    pub validation: Option<Validation<'a, B>>,
    /// Where its figures are written.
    pub metrics: &'a RunMetrics,
}

/// Trains for `schedule.steps` steps, or until `stop`; from a checkpoint, if `keeper` goes on from one of this phase.
///
/// # Errors
/// If the loss is no longer a number, or cannot be read; if a checkpoint cannot be read or written.
pub fn run<M: Model>(
    model: M,
    source: &mut dyn BatchSource<Batch = M::Batch>,
    mut phase: Phase<'_, M::Batch>,
    device: &Device,
    mesh: &Mesh,
    keeper: &mut Keeper,
) -> anyhow::Result<(M, Trace)> {
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
    let names = model.figures();
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
        let step_number = so_far.before.len() + done;
        let has_row = metrics.takes(step_number, is_last || held_out.is_some());
        let has_norm = has_row && metrics.takes_norm(step_number, is_last);
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
        let (next, taken) = step(model, &mut optim, parts, norm, rate);
        drop(hold);
        model = next;
        // Reading the loss waits for the step; what else is known is read along with it.
        let norm = taken.norm.filter(|_| has_row);
        let (has_norm, has_figures) = (norm.is_some(), taken.figures.is_some());
        let read = match has_norm || has_figures {
            true => {
                let all = [Some(taken.loss), norm, taken.figures];
                Tensor::cat(all.into_iter().flatten().collect(), 0)
            }
            false => taken.loss,
        };
        let read = read.try_into_data();
        let read = read.with_context(|| format!("step {step_number} failed"))?;
        let mut read = read.iter::<f32>();
        let loss = read.next().expect("a loss was read");
        let gradient_norm = read.by_ref().take(usize::from(has_norm)).next();
        let figures: Vec<f32> = read.collect();
        if figures.len() != names.len() {
            bail!(
                "the loss of this model has {} figures, and the model {} names for them: {}",
                figures.len(),
                names.len(),
                names.join(", ")
            );
        }
        let time = start.elapsed();

        trace.tokens_per_step = batch.count();
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
        let shown = Shown {
            done,
            loss,
            figures: &figures,
            tokens_per_second,
            rate,
            time,
            gradient_norm,
        };
        progress.step(&shown, &before.memory);
        trace.interrupted = mesh.processes().stop(phase.stop)?;
        let validation = match held_out.filter(|_| loss.is_finite()) {
            Some(held_out) => {
                let found = held_out.loss(&model.valid(), recipe.accumulate, mesh)?;
                trace.validation.push((done, found.loss));
                progress.validated(done, found.loss);
                // What that did is no part of the next step.
                report = mesh.report();
                before = Account::of(&report);
                Some(found)
            }
            None => None,
        };
        if let Some(ranks) = ranks {
            let row = StepRow {
                step: step_number,
                loss,
                gradient_norm,
                rate,
                tokens: trace.tokens_per_step,
                time,
                waiting_for_data,
                validation,
                figures: names.iter().cloned().zip(figures).collect(),
            };
            metrics.row(&row, ranks, mesh.processes())?;
        }
        if !loss.is_finite() {
            progress.finish();
            let lost = Lost {
                step: step_number,
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
    use burn_core::module::Module;
    use burn_core::tensor::TensorData;
    use burn_nn::{Linear, LinearConfig};

    use crate::parallel::DTensorError;
    use crate::trainer::args::MeshArgs;
    use crate::trainer::batch::Numbered;
    use crate::trainer::model::{Loss, Tensors};
    use crate::{Parallelize, trainer::mesh::Mesh};

    /// Rows of four numbers, to be repeated.
    struct Rows(Vec<f32>);

    impl Batch for Rows {
        type Tensors = Tensor<2>;

        fn split(&self, parts: usize) -> Vec<Self> {
            let parts = self.0.chunks(self.0.len() / parts);
            parts.map(|part| Self(part.to_vec())).collect()
        }

        fn enter(&self, device: &Device, _: bool) -> Result<Tensor<2>, DTensorError> {
            let data = TensorData::new(self.0.clone(), [self.0.len() / 4, 4]);
            Ok(Tensor::from_data(data, device))
        }

        fn count(&self) -> usize {
            self.0.len() / 4
        }
    }

    #[derive(Module, Debug, Parallelize)]
    struct Map {
        map: Linear,
        /// Names of figures; a loss has one.
        #[module(skip)]
        names: Vec<String>,
    }

    impl Model for Map {
        type Config = Vec<String>;
        type Batch = Rows;

        fn build(names: &Vec<String>, device: &Device) -> Self {
            let (map, names) = (LinearConfig::new(4, 4).init(device), names.clone());
            Self { map, names }
        }

        fn figures(&self) -> Vec<String> {
            self.names.clone()
        }

        fn loss(&self, rows: Tensors<Self>, parts: usize) -> Loss {
            let value = (self.map.forward(rows.clone()) - rows.clone())
                .powi_scalar(2)
                .mean();
            Loss {
                value: value / parts as f64,
                figures: Some(rows.inner().max()),
            }
        }

        fn held_out(&self, rows: Tensors<Self>) -> [Tensor<1>; 2] {
            let differences = self.map.forward(rows.clone()) - rows.clone();
            [differences.powi_scalar(2).sum(), rows.ones_like().sum()]
        }

        fn facts(_: &Vec<String>) -> Vec<(&'static str, String)> {
            Vec::new()
        }
    }

    fn train(names: &[&str]) -> anyhow::Result<Vec<(f32, f32)>> {
        use std::cell::RefCell;
        use std::rc::Rc;

        let mesh = Mesh::open::<Map>(&MeshArgs::default())?;
        mesh.device().seed(1);
        let names = names.iter().map(ToString::to_string).collect();
        let model = mesh.parallelize(Map::build(&names, mesh.device()))?;
        let shown = Rc::new(RefCell::new(Vec::new()));
        let seen = shown.clone();
        let progress = Progress::lines(3, 1, move |step| {
            seen.borrow_mut().push((step.loss, step.figures[0]));
            String::new()
        });
        let phase = Phase {
            schedule: Schedule::new(1e-2, 3),
            recipe: Recipe {
                accumulate: 2,
                ..Recipe::default()
            },
            progress: &progress,
            stop: &Stop::new(),
            before: &SoFar::of("train"),
            validation: None,
            metrics: &RunMetrics::none(),
        };
        let mut rows = Numbered::new("rows", 8, |numbers| {
            Rows(numbers.map(|number| number as f32).collect())
        });
        run(
            model,
            &mut rows,
            phase,
            mesh.device(),
            &mesh,
            &mut Keeper::none(),
        )?;
        Ok(shown.take())
    }

    #[test]
    fn figures_of_a_model_are_added_up_over_microbatches_and_read_along() {
        let shown = train(&["highest"]).unwrap();
        let highest: Vec<f32> = shown.iter().map(|(_, highest)| *highest).collect();
        // Of rows 0-3 and 4-7, and so on.
        assert_eq!(highest, [3.0 + 7.0, 11.0 + 15.0, 19.0 + 23.0]);
    }

    #[test]
    fn figures_that_are_not_those_of_their_names_are_refused() {
        for (names, listed) in [(&["a", "b"][..], ": a, b"), (&[][..], ": ")] {
            let error = train(names).unwrap_err().to_string();
            let expected = format!("has 1 figures, and the model {} names", names.len());
            assert!(
                error.contains(&expected) && error.ends_with(listed),
                "{error}"
            );
        }
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
