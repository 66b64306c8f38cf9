//! All candidates, one after the other: whether the search misses one that is faster.
//!
//! Everything that numbers leave is planned and simulated whole, wherever closed forms put it, but candidates that are
//! slower than the best of the search:
//!
//! - its products alone take longer at the rate that the largest reach, with the bubble of its stages. Of stages of one
//!   part each, which do not split a backward, stage `s` begins once a microbatch has come through those before it, and
//!   after its last backward they have one to do: a step takes at least `w_0 + ... + w_{s-1} + m x w_s` for `m`
//!   microbatches that take `w_s` each. However layers are cut, some `s` makes that `w / (1 - (1 - 1 / m)^stages)` of a
//!   microbatch that takes `w`. Of other schedules no bubble is certain;
//! - models with fewer layers tell that it takes longer by [`FAR`] or more. This alone is an estimate: the command shows
//!   by how much estimates were too long at most, of everything that was simulated;
//! - it does what another does that is slower already, and makes more again.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::About;
use super::clock::{Clock, Figures};
use super::domain::{Bound, Candidate};
use super::outcome::Outcome;
use crate::clock::Operands;
use crate::schedule::ScheduleKind;
use crate::trainer::job::Job;
use crate::trainer::model::Model;

/// How often progress is shown.
const PARTS: usize = 20;

/// By how much longer than the best a step is not simulated, as a part of it.
const FAR: f64 = 0.1;

/// The outcomes of candidates, with the part by which an estimate of them was too long at most.
struct Exhausted {
    outcomes: Vec<Outcome>,
    excess: f64,
}

impl About<'_> {
    /// Simulates what the search has left; returns what fits, from the fastest on.
    pub(super) fn exhaust<M: Model>(
        &self,
        clock: &Clock<'_, M>,
        devices: usize,
        all: &mut [(Candidate, Outcome)],
        best: Option<usize>,
    ) -> anyhow::Result<Vec<usize>> {
        let memory = self.hardware.memory_bytes() as f64;
        let best = best.and_then(|at| all[at].1.simulated().copied());
        let families = unlike_in_recomputation(all);
        self.tell(devices, || {
            format!("planning all of {} kinds whole", families.len())
        });
        let done = AtomicUsize::new(0);
        let found = clock.each(&families, |job, family: &Vec<usize>| {
            let of: Vec<_> = family.iter().map(|at| &all[*at]).collect();
            let found = self.exhaust_family(clock, job, best, devices, &of);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(families.len().div_ceil(PARTS)) {
                self.tell(devices, || format!("{done} of {} kinds", families.len()));
            }
            found
        })?;
        let excess = found.iter().map(|of| of.excess).fold(0.0, f64::max);
        self.tell(devices, || {
            format!("estimates were too long by {:.1} % at most", 100.0 * excess)
        });
        for (family, found) in families.iter().zip(found) {
            for (at, outcome) in family.iter().zip(found.outcomes) {
                all[*at].1 = outcome;
            }
        }
        let fitting = (0..all.len()).filter(|at| {
            let (_, outcome) = &all[*at];
            outcome.simulated().is_some() && outcome.fits(memory)
        });
        let mut fitting: Vec<usize> = fitting.collect();
        let seconds = |at: &usize| all[*at].1.simulated().map_or(f64::INFINITY, |of| of.step_s);
        fitting.sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        Ok(fitting)
    }

    /// Simulates candidates that differ in what they make again, from the one that makes least.
    fn exhaust_family<M: Model>(
        &self,
        clock: &Clock<'_, M>,
        job: &Job<M>,
        best: Option<Figures>,
        devices: usize,
        family: &[&(Candidate, Outcome)],
    ) -> Exhausted {
        let memory = self.hardware.memory_bytes() as f64;
        let (mut certain, mut excess) = (None, 0.0_f64);
        let outcomes = family.iter().map(|(of, outcome)| {
            if let Some(bound) = certain {
                return match outcome {
                    Outcome::Simulated(_) => outcome.clone(),
                    _ => Outcome::Pruned(bound),
                };
            }
            let products_s = best.map_or(0.0, |best| self.products_s(of, devices, &best));
            if best.is_some_and(|best| products_s > best.step_s) {
                certain = Some(Bound::Products);
                return Outcome::Pruned(Bound::Products);
            }
            // What cannot be cut to fewer layers cannot be planned whole either, and that says why.
            let estimated = clock.estimate(job, of).map_or(0.0, |of| of.step_s);
            let found = match outcome {
                Outcome::Simulated(figures) => *figures,
                _ if best.is_some_and(|best| estimated > best.step_s * (1.0 + FAR)) => {
                    certain = Some(Bound::Far);
                    return Outcome::Pruned(Bound::Far);
                }
                _ => match clock.whole(job, of) {
                    Ok(figures) => figures,
                    Err(error) => return Outcome::Failed(format!("{error:#}")),
                },
            };
            excess = excess.max(estimated / found.step_s - 1.0);
            assert!(
                found.step_s >= products_s * (1.0 - 1e-9),
                "bug: {of} takes {} s, and its products alone {products_s} s",
                found.step_s
            );
            if best.is_some_and(|best| found.step_s > best.step_s) {
                certain = Some(Bound::Slower);
            } else if found.peak_bytes <= memory {
                certain = Some(Bound::Recomputation);
            }
            Outcome::Simulated(found)
        });
        let outcomes = outcomes.collect();
        Exhausted { outcomes, excess }
    }

    /// Returns how long a step takes at least: its products, and the bubble that is certain.
    fn products_s(&self, of: &Candidate, devices: usize, best: &Figures) -> f64 {
        let operands = match of.float8 {
            Some(_) => Operands::Float8,
            None => Operands::Of(self.dtype),
        };
        let rate = self.hardware.peak_flops(operands) * self.hardware.products.efficiency;
        best.model_flops / devices as f64 / rate * (1.0 + certain_bubble(of))
    }
}

/// Returns the part of the work that a step waits besides, however layers are cut into stages.
fn certain_bubble(of: &Candidate) -> f64 {
    match of.schedule {
        (ScheduleKind::OneFOneB, 1) => {
            let (stages, microbatches) = (of.stages() as f64, of.microbatches as f64);
            let rest = (1.0 - 1.0 / microbatches).powf(stages);
            stages / (microbatches * (1.0 - rest)) - 1.0
        }
        _ => 0.0,
    }
}

/// Returns the candidates that numbers have left, those together that differ in what they make again.
fn unlike_in_recomputation(all: &[(Candidate, Outcome)]) -> Vec<Vec<usize>> {
    let is_left = |at: &usize| {
        let outcome = &all[*at].1;
        let is_out = outcome.bound().is_some_and(Bound::is_by_numbers);
        !is_out && !matches!(outcome, Outcome::Failed(_))
    };
    let left: Vec<usize> = (0..all.len()).filter(is_left).collect();
    let are_alike = |one: &usize, other: &usize| {
        let (one, other) = (&all[*one].0, &all[*other].0);
        let checkpoint = other.checkpoint;
        *other
            == Candidate {
                checkpoint,
                ..one.clone()
            }
    };
    left.chunk_by(are_alike).map(<[usize]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ActivationCheckpoint;

    #[test]
    fn a_bubble_is_certain_of_stages_that_are_one_part() {
        let of = |schedule, stages, microbatches| {
            certain_bubble(&Candidate {
                sizes: [stages, 1, 1, 1, 1],
                microbatches,
                schedule,
                checkpoint: ActivationCheckpoint::None,
                float8: None,
            })
        };
        let flat = (ScheduleKind::OneFOneB, 1);
        assert_eq!(of(flat, 1, 4), 0.0);
        // Two microbatches: the first stage has two thirds of the layers, the second waits for one of its own and has
        // two of one third. 4 / 3 of what one rank would take, where 2 / 2 is without a bubble.
        assert!((of(flat, 2, 2) - 1.0 / 3.0).abs() < 1e-12);
        let one = Candidate {
            sizes: [4, 1, 4, 1, 1],
            microbatches: 8,
            schedule: flat,
            checkpoint: ActivationCheckpoint::None,
            float8: None,
        };
        assert!(certain_bubble(&one) < one.bubble());
        assert_eq!(of((ScheduleKind::ZbV, 2), 4, 8), 0.0);
    }
}
