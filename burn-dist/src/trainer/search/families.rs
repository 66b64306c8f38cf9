//! Candidates of one kind: what fits with less made again prunes the others.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::clock::{APART, Figures};
use super::domain::{Bound, CHECKPOINTS, Candidate};
use super::forms::Forms;
use super::outcome::Outcome;

/// Returns the families of what is not yet known, with or without stages, in the order of the closed forms: by the time
/// of their best, those that fit first.
pub(super) fn ordered(
    forms: &Forms<'_>,
    candidates: &[Candidate],
    outcomes: &[Option<Outcome>],
    memory: f64,
    is_staged: bool,
) -> Vec<Vec<usize>> {
    let is_open = |at: &usize| {
        let of = &candidates[*at];
        outcomes[*at].is_none() && (of.stages() > 1) == is_staged
    };
    let open: Vec<usize> = (0..candidates.len()).filter(is_open).collect();
    let are_of_family =
        |one: &usize, other: &usize| are_of_family(&candidates[*one], &candidates[*other]);
    let families = open.chunk_by(are_of_family).map(<[usize]>::to_vec);
    // Of what does not fit, what is the least over comes first.
    let key = |family: &[usize]| {
        let rough = family.iter().map(|at| forms.rough(&candidates[*at]));
        let keys = rough.map(|of| match of.peak_bytes <= memory {
            true => (0.0, of.step_s),
            false => (of.peak_bytes, of.step_s),
        });
        keys.min_by(compare).expect("a family has candidates")
    };
    let mut keyed: Vec<_> = families.map(|family| (key(&family), family)).collect();
    keyed.sort_by(|(one, _), (other, _)| compare(one, other));
    keyed.into_iter().map(|(_, family)| family).collect()
}

fn compare(one: &(f64, f64), other: &(f64, f64)) -> Ordering {
    one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
}

/// Returns whether one candidate that fits prunes another that makes more again.
fn are_of_family(one: &Candidate, other: &Candidate) -> bool {
    // Without stages, more microbatches are no faster either.
    let microbatches = one.stages() == 1 || one.microbatches == other.microbatches;
    microbatches
        && one.sizes == other.sizes
        && one.schedule == other.schedule
        && one.float8 == other.float8
}

/// Estimates candidates of one family, from what holds most on; none makes as much again as one that fits.
pub(super) fn chain(
    family: &[&Candidate],
    memory: f64,
    estimate: impl Fn(&Candidate) -> anyhow::Result<Figures>,
) -> Vec<Outcome> {
    let again = |of: &Candidate| CHECKPOINTS.iter().position(|it| *it == of.checkpoint);
    let mut fits = None;
    let outcomes = family.iter().map(|of| {
        if fits.is_some_and(|fits| again(of) >= fits) {
            return Outcome::Pruned(Bound::Recomputation);
        }
        match estimate(of) {
            Err(error) => Outcome::Failed(format!("{error:#}")),
            Ok(figures) if figures.peak_bytes > memory * (1.0 + APART) => Outcome::Unfit(figures),
            Ok(figures) => {
                if figures.peak_bytes <= memory {
                    fits = Some(again(of));
                }
                Outcome::Estimated(figures)
            }
        }
    });
    outcomes.collect()
}

/// Prunes meshes with stages that are slower than the best without even if they wait for nothing but their bubble.
pub(super) fn prune_bubbles(candidates: &[Candidate], outcomes: &mut [Option<Outcome>]) {
    // What ranks compute in all that split a layer alike; how a stage waits for others is its own affair.
    let alike = |of: &Candidate| (of.cp(), of.tp(), of.float8.is_some());
    let mut known: HashMap<(usize, usize, bool), f64> = HashMap::new();
    let mut best = f64::INFINITY;
    for (of, outcome) in candidates.iter().zip(&*outcomes) {
        if let Some(figures) = outcome.as_ref().and_then(Outcome::estimated) {
            let least = known.entry(alike(of)).or_insert(f64::INFINITY);
            *least = least.min(figures.busy_s);
            best = best.min(figures.step_s);
        }
    }
    for (of, outcome) in candidates.iter().zip(outcomes) {
        if let (None, Some(busy)) = (&*outcome, known.get(&alike(of)))
            && busy * (1.0 + of.bubble()) > best * (1.0 + APART)
        {
            *outcome = Some(Outcome::Pruned(Bound::Bubble));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ActivationCheckpoint;
    use crate::schedule::ScheduleKind;

    fn candidate(microbatches: usize, checkpoint: ActivationCheckpoint) -> Candidate {
        Candidate {
            sizes: [1, 1, 4, 1, 1],
            microbatches,
            schedule: (ScheduleKind::default(), 1),
            checkpoint,
            float8: None,
        }
    }

    /// More is made again, or in more microbatches, only as long as nothing fits; what just does not may.
    #[test]
    fn what_fits_prunes_what_makes_more_again() {
        let all = [1, 2]
            .map(|microbatches| CHECKPOINTS.map(|checkpoint| candidate(microbatches, checkpoint)));
        let all: Vec<&Candidate> = all.iter().flatten().collect();
        let held = |of: &Candidate| {
            let again = CHECKPOINTS.iter().position(|it| *it == of.checkpoint);
            let full = [200.0, 104.0, 50.0][again.expect("one of them")];
            full / of.microbatches as f64
        };
        let outcomes = chain(&all, 100.0, |of| {
            Ok(Figures {
                step_s: 1.0,
                busy_s: 1.0,
                peak_bytes: held(of),
                model_flops: 1.0,
            })
        });
        let texts = outcomes.iter().map(|outcome| match outcome {
            Outcome::Pruned(bound) => format!("{bound:?}"),
            Outcome::Estimated(figures) => figures.peak_bytes.to_string(),
            Outcome::Unfit(figures) => format!("{} are too many", figures.peak_bytes),
            other => format!("{other:?}"),
        });
        let texts: Vec<String> = texts.collect();
        assert_eq!(
            texts,
            [
                "200 are too many",
                "104",
                "50",
                "100",
                "Recomputation",
                "Recomputation"
            ]
        );
    }

    /// A stage may wait less for others than ranks without stages do: what those compute is all that is known of it.
    #[test]
    fn stages_are_pruned_by_what_ranks_compute() {
        let figures = |busy_s| Figures {
            step_s: 1.0,
            busy_s,
            peak_bytes: 1.0,
            model_flops: 1.0,
        };
        let staged = Candidate {
            sizes: [2, 1, 2, 1, 1],
            schedule: (ScheduleKind::OneFOneB, 1),
            ..candidate(2, ActivationCheckpoint::None)
        };
        assert_eq!(staged.bubble(), 0.5);
        let all = [candidate(1, ActivationCheckpoint::None), staged];
        for (busy_s, pruned) in [(0.9, Some(Outcome::Pruned(Bound::Bubble))), (0.6, None)] {
            let mut outcomes = [Some(Outcome::Estimated(figures(busy_s))), None];
            prune_bubbles(&all, &mut outcomes);
            assert_eq!(outcomes[1], pruned, "{busy_s}");
        }
    }
}
