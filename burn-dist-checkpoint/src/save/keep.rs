//! Which checkpoints of a run are kept.

use super::checkpoints::Checkpoints;
use super::find::StepState;
use crate::error::CheckpointError;
use std::num::{NonZeroU64, NonZeroUsize};

/// Which checkpoints are kept: the last ones, and beside them the last one without NaN and infinite values, if none of
/// them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The last so many.
    pub last: NonZeroUsize,
    /// And those of every so many steps.
    pub every: Option<NonZeroU64>,
}

/// The standing of a step when others are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// A checkpoint all of whose values are finite.
    Finite,
    /// A checkpoint with NaN or infinite values.
    NonFinite,
    /// No checkpoint, or one that cannot be read: it takes no other's place, and is left to people.
    Unknown,
}

impl Keep {
    /// Returns those of `steps`, ascending, that are not kept. `standing` is asked of the last ones, from the end, as
    /// far as need be: to the last finite one.
    fn superfluous(&self, steps: &[u64], mut standing: impl FnMut(u64) -> Standing) -> Vec<u64> {
        let (mut num_last, mut has_finite) = (0, false);
        let is_kept = |step: u64| {
            self.every
                .is_some_and(|every| step.is_multiple_of(every.get()))
        };
        let mut superfluous = Vec::new();
        for &step in steps.iter().rev() {
            let is_last = num_last < self.last.get();
            if is_last || !has_finite {
                let standing = standing(step);
                let is_first_finite = standing == Standing::Finite && !has_finite;
                has_finite |= is_first_finite;
                num_last += usize::from(is_last && standing != Standing::Unknown);
                if is_last || is_first_finite || standing == Standing::Unknown {
                    continue;
                }
            }
            if !is_kept(step) {
                superfluous.push(step);
            }
        }
        superfluous.reverse();
        superfluous
    }
}

impl Checkpoints {
    /// Removes the checkpoints that are not kept. Returns the steps. All are tried, whatever becomes of one.
    ///
    /// One process calls it, while nobody saves. The last checkpoint always stays, and so does the last one whose
    /// values are all finite. What is no checkpoint, or cannot be read, is left alone.
    ///
    /// # Errors
    /// [`CheckpointError::Taken`]; [`CheckpointError::Io`], of the first that could not be removed.
    pub fn prune(&self, keep: Keep) -> Result<Vec<u64>, CheckpointError> {
        let standing = |step| match self.state(step) {
            Ok(StepState::Whole(checkpoint)) => match checkpoint.manifest().non_finite() {
                None => Standing::Finite,
                Some(_) => Standing::NonFinite,
            },
            Ok(StepState::Torn(_)) | Err(_) => Standing::Unknown,
        };
        self.lock()?;
        let superfluous = keep.superfluous(&self.steps()?, standing);
        let (gone, outcome) = self.give_up(&superfluous);
        outcome.map(|()| gone)
    }

    /// Removes the checkpoint of a step, if it is there.
    ///
    /// One process calls it, while nobody saves.
    ///
    /// # Errors
    /// [`CheckpointError::Taken`]; [`CheckpointError::Io`].
    pub fn remove(&self, step: u64) -> Result<(), CheckpointError> {
        self.lock()?;
        let steps: Vec<u64> = self
            .steps()?
            .into_iter()
            .filter(|found| *found == step)
            .collect();
        self.give_up(&steps).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_and_every_so_often_are_kept() {
        let keep = |last, every| Keep {
            last: NonZeroUsize::new(last).unwrap(),
            every: NonZeroU64::new(every),
        };
        let steps = [10, 20, 30, 40, 50];
        let of = |keep: Keep, steps: &[u64]| keep.superfluous(steps, |_| Standing::Finite);
        assert_eq!(of(keep(2, 0), &steps), [10, 20, 30]);
        assert_eq!(of(keep(1, 20), &steps), [10, 30]);
        assert_eq!(of(keep(9, 0), &steps), [0; 0]);
        assert_eq!(of(keep(1, 0), &[]), [0; 0]);
    }

    #[test]
    fn the_last_finite_one_is_kept_beside_the_last() {
        use Standing::{Finite, NonFinite, Unknown};
        let superfluous = |last, standings: &[Standing]| {
            let keep = Keep {
                last: NonZeroUsize::new(last).unwrap(),
                every: None,
            };
            let steps: Vec<u64> = (0..standings.len() as u64).collect();
            keep.superfluous(&steps, |step| standings[step as usize])
        };
        assert_eq!(superfluous(1, &[Finite, Finite, NonFinite]), [0]);
        assert_eq!(superfluous(1, &[Finite, NonFinite, NonFinite]), [1]);
        assert_eq!(superfluous(2, &[Finite, Finite, NonFinite, Finite]), [0, 1]);
        assert_eq!(superfluous(2, &[Finite, Finite, NonFinite, NonFinite]), [0]);
        // Where no checkpoint is finite, as with masks of infinities, the last ones are those that are kept.
        assert_eq!(superfluous(1, &[NonFinite; 3]), [0, 1]);
        // What cannot be read counts for nothing, and nobody removes it while it is in question.
        assert_eq!(superfluous(1, &[Finite, Finite, Unknown]), [0]);
        assert_eq!(
            superfluous(1, &[Finite, Unknown, NonFinite, Unknown]),
            [0; 0]
        );
        // Laws: the last so many checkpoints stay, and so does the last finite one.
        let all = [Finite, NonFinite, Unknown];
        for number in 0..3_usize.pow(5) {
            let standings: Vec<Standing> =
                (0..5).map(|at| all[number / 3_usize.pow(at) % 3]).collect();
            for last in 1..=3 {
                let gone = superfluous(last, &standings);
                let known = (0..5).rev().filter(|step| standings[*step] != Unknown);
                let finite = (0..5).rev().find(|step| standings[*step] == Finite);
                for step in known.take(last).chain(finite) {
                    assert!(!gone.contains(&(step as u64)), "{standings:?}: {gone:?}");
                }
            }
        }
    }
}
