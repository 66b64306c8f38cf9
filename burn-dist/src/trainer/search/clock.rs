//! How long a candidate takes: of the whole model, or as models with fewer layers let one expect.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

use super::domain::Candidate;
use crate::clock::{Hardware, Simulation};
use crate::schedule::ScheduleKind;
use crate::trainer::args::StepArgs;
use crate::trainer::job::{Job, StepRows};
use crate::trainer::model::Model;
use crate::trainer::simulate::timed;

/// Layers of the two models from which one with more is estimated: the first layer and the last differ from others.
const FEW: [usize; 2] = [3, 5];

/// How far an estimate may be from what is simulated, of time and of memory.
pub(super) const APART: f64 = 0.05;

/// The figures of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds in which the busiest rank computes, or waits for its host: without what it waits for others.
    pub busy_s: f64,
    /// Bytes of the fullest rank, with those that are reserved.
    pub peak_bytes: f64,
    /// Flops of the model.
    pub model_flops: f64,
}

impl Figures {
    /// Returns what follows for `layers` from two models with [`FEW`], as if each layer more took as much.
    fn extended([one, two]: [Self; 2], layers: usize) -> Self {
        let [first, second] = FEW.map(|layers| layers as f64);
        let times = (layers as f64 - first) / (second - first);
        let of = |of: fn(&Self) -> f64| of(&one) + times * (of(&two) - of(&one));
        Self {
            step_s: of(|of| of.step_s),
            busy_s: of(|of| of.busy_s),
            peak_bytes: of(|of| of.peak_bytes),
            model_flops: of(|of| of.model_flops),
        }
    }
}

/// A model's step on hardware.
pub(super) struct Clock<'a, M: Model> {
    /// Makes the model and its rows: each thread has its own.
    pub make: &'a (dyn Fn() -> anyhow::Result<Job<M>> + Sync),
    /// All that is not searched.
    pub step: &'a StepArgs,
    pub hardware: &'a Hardware,
    /// Layers of the model; 0 if it has no list of them.
    pub layers: usize,
    /// Bytes at rest and of gradients, of all parts of the parameters together.
    pub state_bytes: f64,
    /// Steps on so many rows that were estimated before: schedules share those of their stages.
    pub known: Mutex<HashMap<(String, usize), Figures>>,
}

impl<M: Model> Clock<'_, M> {
    /// Maps items on as many threads as there are cores, each with a job of its own; results are in order.
    ///
    /// # Errors
    /// If a job cannot be made.
    pub(super) fn each<T: Sync, R: Send>(
        &self,
        items: &[T],
        map: impl Fn(&Job<M>, &T) -> R + Sync,
    ) -> anyhow::Result<Vec<R>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
        let work = || -> anyhow::Result<()> {
            let job = (self.make)()?;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(at) else {
                    return Ok(());
                };
                let result = map(&job, item);
                lock(&found).push((at, result));
            }
        };
        std::thread::scope(|scope| {
            let threads = (0..cores.min(items.len())).map(|_| scope.spawn(work));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().try_for_each(|thread| {
                let end = thread.join();
                end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let mut found = std::mem::take(&mut *lock(&found));
        found.sort_by_key(|(at, _)| *at);
        Ok(found.into_iter().map(|(_, result)| result).collect())
    }

    /// Returns the options of a candidate.
    pub(super) fn options(&self, of: &Candidate) -> anyhow::Result<StepArgs> {
        let mut step = self.step.clone();
        let devices = &mut step.devices;
        let mesh = of.mesh().parse();
        devices.forward.axes.mesh = Some(mesh.with_context(|| of.mesh())?);
        devices.forward.float8.clone_from(&of.float8);
        devices.activation_checkpoint = of.checkpoint;
        let (kind, stages) = of.schedule;
        devices.pipeline.schedule = kind.into();
        devices.pipeline.stages_per_rank = (of.stages() > 1).then_some(stages);
        step.accumulate = of.microbatches;
        Ok(step)
    }

    /// Simulates a step of a model of these sizes.
    fn run(
        &self,
        job: &Job<M>,
        config: &M::Config,
        rows: StepRows,
        of: &Candidate,
    ) -> anyhow::Result<Figures> {
        let step = self.options(of)?;
        let rows = StepRows {
            accumulate: of.microbatches,
            ..rows
        };
        let timed = timed::<M>((config, &job.sample), rows, &step, None, self.hardware)?;
        let windows = &timed.steady.simulations;
        let ranks = windows.iter().flat_map(|window| &window.ranks);
        let peak_bytes = ranks.map(|rank| rank.peak_bytes).max().unwrap_or(0);
        let busy_ns = windows.iter().map(|window| {
            let ranks = window.ranks.iter();
            ranks.map(|rank| rank.compute_ns + rank.host_ns).max()
        });
        Ok(Figures {
            step_s: windows.iter().map(Simulation::step_s).sum(),
            busy_s: busy_ns.flatten().sum::<u64>() as f64 / 1e9,
            peak_bytes: peak_bytes as f64,
            model_flops: timed.steady.model_flops,
        })
    }

    /// Simulates a step of the whole model.
    ///
    /// # Errors
    /// If the step cannot be planned.
    pub(super) fn whole(&self, job: &Job<M>, of: &Candidate) -> anyhow::Result<Figures> {
        self.run(job, &job.config, job.rows, of)
    }

    /// Estimates a step: of a mesh without stages from models with fewer layers, of one with stages from its
    /// microbatches on the ranks of a stage.
    ///
    /// # Errors
    /// If a step cannot be planned.
    pub(super) fn estimate(&self, job: &Job<M>, of: &Candidate) -> anyhow::Result<Figures> {
        let stages = of.stages();
        if stages == 1 {
            return self.extended(job, job.rows, of);
        }
        let [one, two] = [1, 2].map(|microbatches| {
            let rows = StepRows {
                batch: job.rows.batch / of.microbatches * microbatches,
                ..job.rows
            };
            let mut alone = of.clone();
            alone.sizes[0] = 1;
            alone.microbatches = microbatches;
            alone.schedule = (ScheduleKind::default(), 1);
            self.extended(job, rows, &alone)
        });
        let (one, two) = (one?, two?);
        let microbatches = of.microbatches as f64;
        let whole = |of: fn(&Figures) -> f64, times: f64| {
            (of(&one) + (of(&two) - of(&one)) * (times - 1.0)) / stages as f64
        };
        // A rank has as many microbatches under way as there are stages, of its part of the layers each.
        let state = self.state_bytes / alone_parts(of);
        Ok(Figures {
            step_s: whole(|of| of.step_s, microbatches * (1.0 + of.bubble())),
            busy_s: whole(|of| of.busy_s, microbatches),
            peak_bytes: one.peak_bytes - state * (1.0 - 1.0 / stages as f64),
            model_flops: one.model_flops * microbatches,
        })
    }

    fn extended(&self, job: &Job<M>, rows: StepRows, of: &Candidate) -> anyhow::Result<Figures> {
        let key = (of.to_string(), rows.batch);
        if let Some(known) = lock(&self.known).get(&key) {
            return Ok(*known);
        }
        let figures = self.of_few(job, rows, of)?;
        lock(&self.known).insert(key, figures);
        Ok(figures)
    }

    /// Simulates a step of a mesh without stages, of models with few layers if there are such.
    fn of_few(&self, job: &Job<M>, rows: StepRows, of: &Candidate) -> anyhow::Result<Figures> {
        let cut = FEW.map(|layers| M::cut(&job.config, layers));
        let [Some(few), Some(more)] = cut else {
            return self.run(job, &job.config, rows, of);
        };
        if self.layers <= FEW[1] {
            return self.run(job, &job.config, rows, of);
        }
        let both = [few, more].map(|config| self.run(job, &config, rows, of));
        let [few, more] = both;
        Ok(Figures::extended([few?, more?], self.layers))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many parts the parameters of a stage are at rest in.
fn alone_parts(of: &Candidate) -> f64 {
    (of.parts_at_rest() / of.stages()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_are_not_there_take_as_much_as_those_that_are() {
        let of = |layers: usize| Figures {
            step_s: 2.0 + 3.0 * layers as f64,
            busy_s: 1.0 + 2.0 * layers as f64,
            peak_bytes: 100.0 + 10.0 * layers as f64,
            model_flops: 7.0 * layers as f64,
        };
        assert_eq!(Figures::extended(FEW.map(of), 80), of(80));
    }
}
