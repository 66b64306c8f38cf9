//! The results of a search.

use super::clock::Figures;
use super::domain::{Bound, Candidate};

/// The best candidates that are shown.
pub(super) const SHOWN: usize = 10;

/// The result for a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is not planned.
    Pruned(Bound),
    /// It was estimated, and holds more than there is.
    Unfit(Figures),
    /// It was estimated, and others are faster.
    Estimated(Figures),
    /// It was planned whole.
    Simulated(Figures),
    /// It cannot be planned, for this reason.
    Failed(String),
}

impl Outcome {
    pub(super) fn estimated(&self) -> Option<&Figures> {
        match self {
            Self::Estimated(figures) => Some(figures),
            _ => None,
        }
    }

    /// Returns whether it holds no more than this, as far as that is known.
    pub(super) fn fits(&self, memory: f64) -> bool {
        let known = self.estimated().or(self.simulated());
        known.is_some_and(|figures| figures.peak_bytes <= memory)
    }

    /// Returns the bound that has pruned it, if one has.
    pub(super) fn bound(&self) -> Option<Bound> {
        match self {
            Self::Pruned(bound) => Some(*bound),
            Self::Unfit(_) => Some(Bound::Activations),
            _ => None,
        }
    }

    pub(super) fn simulated(&self) -> Option<&Figures> {
        match self {
            Self::Simulated(figures) => Some(figures),
            _ => None,
        }
    }
}

/// The result of a search.
#[derive(Debug)]
pub struct Searched {
    /// All candidates, with what became of each.
    pub all: Vec<(Candidate, Outcome)>,
    /// The candidates that fit, by number, from the fastest on.
    pub best: Vec<usize>,
    /// The one that the search has found without all others, where all were looked at after it.
    pub alone: Option<usize>,
    /// Why the model cannot be split over so many ranks along tp.
    pub unsplit: Vec<(usize, String)>,
}
