//! Which source a row comes from, and which lane.

use super::error::CorpusError;
use crate::rng::Rng;

/// Shares are fractions of this.
const WHOLE: u64 = 1 << 32;

/// Shares of sources as whole numbers that sum to [`WHOLE`].
pub(super) fn shares(named: &[(&str, f64)]) -> Result<Vec<u64>, CorpusError> {
    if named.is_empty() {
        return Err(CorpusError::NoSources);
    }
    for (name, weight) in named {
        if !weight.is_finite() || *weight < 0.0 {
            return Err(CorpusError::Weight {
                name: (*name).to_string(),
                weight: *weight,
            });
        }
    }
    // Against sums beyond the largest number.
    let most = named.iter().map(|(_, weight)| *weight).fold(0.0, f64::max);
    if most == 0.0 {
        let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        return Err(CorpusError::ZeroWeights {
            names: names.join(", "),
        });
    }
    let sum: f64 = named.iter().map(|(_, weight)| weight / most).sum();
    let share = |weight: f64| match weight > 0.0 {
        true => ((weight / most / sum * WHOLE as f64) as u64).max(1),
        false => 0,
    };
    let mut shares: Vec<u64> = named.iter().map(|(_, weight)| share(*weight)).collect();
    // What rounding leaves or takes is of the largest.
    let largest = (0..shares.len()).max_by_key(|at| shares[*at]).unwrap_or(0);
    let others: u64 = shares.iter().sum::<u64>() - shares[largest];
    shares[largest] = WHOLE - others;
    Ok(shares)
}

/// A share of all, in percent: another number for each.
pub(super) fn percent(share: u64) -> f64 {
    100.0 * share as f64 / WHOLE as f64
}

/// Goes through the rows of a run: of each, its source, its lane, and which of the rows of this source in this lane it
/// is.
///
/// Row `i` is of lane `i mod lanes`. Sources come in an order in which, after any number of rows, each has its share to
/// within one row. A round of as many rows as there are lanes takes the next sources of that order, turned by a random
/// number: else a lane could meet one source alone. So shares are exact to within a row at the end of each round.
///
/// # Source
/// Baruah, Cohen, Plaxton, Varvel, "Proportionate progress" (Algorithmica 15, 1996), on one processor: the earliest
/// deadline among those whose next unit may begin.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    shares: Vec<u64>,
    lanes: usize,
    seed: u64,
    /// Rows so far.
    rows: u64,
    /// Rows of each source up to the beginning of this round.
    before: Vec<u64>,
    /// The sources of this round, lane by lane; empty before it is begun.
    round: Vec<usize>,
    /// Rows of each source up to the end of this round.
    after: Vec<u64>,
    /// Rows of each source in each lane: `[lane * sources + source]`.
    taken: Vec<u64>,
}

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct From {
    pub(super) lane: usize,
    pub(super) source: usize,
    /// Rows of this source in this lane before it.
    pub(super) nth: u64,
}

impl Mixture {
    pub(super) fn new(shares: Vec<u64>, lanes: usize, seed: u64) -> Self {
        let sources = shares.len();
        Self {
            rows: 0,
            before: vec![0; sources],
            after: vec![0; sources],
            round: Vec::new(),
            taken: vec![0; lanes * sources],
            shares,
            lanes,
            seed,
        }
    }

    /// Goes on after `rows` rows, where `before` and `taken` are known.
    pub(super) fn resume(&mut self, rows: u64, before: &[u64], taken: &[u64]) {
        self.rows = rows;
        self.before = before.to_vec();
        self.taken = taken.to_vec();
        self.round.clear();
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn before(&self) -> &[u64] {
        &self.before
    }

    pub(super) fn taken(&self) -> &[u64] {
        &self.taken
    }

    /// The next row.
    pub(super) fn next(&mut self) -> From {
        let lane = (self.rows % self.lanes as u64) as usize;
        if self.round.is_empty() {
            self.begin_round();
        }
        let source = self.round[lane];
        let taken = &mut self.taken[lane * self.shares.len() + source];
        let from = From {
            lane,
            source,
            nth: *taken,
        };
        *taken += 1;
        self.rows += 1;
        if lane + 1 == self.lanes {
            self.before.clone_from(&self.after);
            self.round.clear();
        }
        from
    }

    fn begin_round(&mut self) {
        let lanes = self.lanes as u64;
        let number = self.rows / lanes;
        self.after.clone_from(&self.before);
        self.round.clear();
        for at in number * lanes..(number + 1) * lanes {
            let source = next_source(&self.shares, &self.after, at);
            self.after[source] += 1;
            self.round.push(source);
        }
        if self.shares.len() > 1 {
            let turn = Rng::of_keys(&[self.seed, number]).below(self.lanes);
            self.round.rotate_left(turn);
        }
    }
}

/// The source of row `at`, where `counts` are the rows of each before it: of those whose next row is due to begin, the
/// one that has to come first.
fn next_source(shares: &[u64], counts: &[u64], at: u64) -> usize {
    let whole = u128::from(WHOLE);
    let due = |source: &usize| {
        let (share, count) = (u128::from(shares[*source]), u128::from(counts[*source]));
        // Begins at floor(count / share): count < share (at + 1).
        count * whole < share * (u128::from(at) + 1)
    };
    let deadline = |source: &usize| {
        let (share, count) = (u128::from(shares[*source]), u128::from(counts[*source]));
        ((count + 1) * whole).div_ceil(share)
    };
    let all = 0..shares.len();
    all.filter(due)
        .min_by_key(deadline)
        .expect("shares sum to the whole, so that one of them is behind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(weights: &[f64]) -> Result<Vec<u64>, CorpusError> {
        let named: Vec<(&str, f64)> = weights.iter().map(|weight| ("a", *weight)).collect();
        shares(&named)
    }

    #[test]
    fn weights_that_are_no_shares_are_refused() {
        assert!(matches!(of(&[]), Err(CorpusError::NoSources)));
        assert!(matches!(
            of(&[0.0, 0.0]),
            Err(CorpusError::ZeroWeights { .. })
        ));
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                of(&[1.0, weight]),
                Err(CorpusError::Weight { .. })
            ));
        }
        assert_eq!(of(&[f64::MAX, f64::MAX]).unwrap(), [WHOLE / 2; 2]);
        assert_eq!(of(&[3.0, 0.0]).unwrap(), [WHOLE, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn shares_are_exact_to_within_a_row(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-3..10.0f64], 1..6),
            lanes in 0u32..4,
            seed: u64,
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let shares = of(&weights).unwrap();
            let lanes = 1usize << lanes;
            let mut mixture = Mixture::new(shares.clone(), lanes, seed);
            let mut counts = vec![0u64; shares.len()];
            let mut nth = vec![0u64; lanes * shares.len()];
            for row in 0..1000u64 {
                let from = mixture.next();
                prop_assert_eq!(from.lane as u64, row % lanes as u64);
                let taken = &mut nth[from.lane * shares.len() + from.source];
                prop_assert_eq!(from.nth, *taken);
                *taken += 1;
                counts[from.source] += 1;
                if !(row + 1).is_multiple_of(lanes as u64) {
                    continue;
                }
                for (count, share) in counts.iter().zip(&shares) {
                    let exact = *share as f64 / WHOLE as f64 * (row + 1) as f64;
                    prop_assert!((*count as f64 - exact).abs() < 1.0, "{} of {}", count, exact);
                }
            }
        }

        #[test]
        fn a_mixture_goes_on_where_it_was(stop in 0u64..200, lanes in 0u32..4, seed: u64) {
            let shares = of(&[0.5, 0.2, 0.3]).unwrap();
            let mut whole = Mixture::new(shares.clone(), 1 << lanes, seed);
            (0..stop).for_each(|_| {
                whole.next();
            });
            let mut after = Mixture::new(shares, 1 << lanes, seed);
            after.resume(whole.rows(), whole.before(), whole.taken());
            for _ in 0..100 {
                prop_assert_eq!(after.next(), whole.next());
            }
        }
    }

    #[test]
    fn every_lane_meets_every_source() {
        let mut mixture = Mixture::new(of(&[1.0, 1.0]).unwrap(), 8, 3);
        (0..8000).for_each(|_| {
            mixture.next();
        });
        for taken in mixture.taken() {
            assert!((400..600).contains(taken), "{taken} of 1000");
        }
    }
}
