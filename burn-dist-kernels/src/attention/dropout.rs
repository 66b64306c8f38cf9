//! Which weights are dropped: random numbers by position.
//!
//! A function of a seed and of where query and key are in the whole says whether their weight is dropped: not of where
//! they are in the part at hand. A split over ranks drops the same weights, and the backward drops them again.
//!
//! # Source
//! Philox4x32-10, as [`philox`](crate::philox) says. The seed is the key; four keys of the whole in a row, the query,
//! the head and the batch element are the counter.

use super::Real;
use crate::philox::philox4x32;
use std::ops::Range;

/// Elements of a whole at equal distances: element `i` of the part is element `start + i * step` of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Places {
    /// Where the first element is.
    pub start: usize,
    /// The distance of neighbours.
    pub step: usize,
}

impl Places {
    /// All elements.
    pub const ALL: Self = Self { start: 0, step: 1 };

    fn of(self, index: usize) -> usize {
        self.start + index * self.step
    }
}

/// Where a part of an attention is in the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Batch elements.
    pub batch: Places,
    /// Heads of keys and values.
    pub heads: Places,
    /// Query heads that share one of these.
    pub group: Places,
    /// How many share one in the whole.
    pub group_size: usize,
    /// Queries.
    pub queries: Places,
    /// Keys.
    pub keys: Places,
}

impl Origin {
    /// Returns the origin of a whole, so many of whose query heads share a head of keys and values.
    pub fn whole(group_size: usize) -> Self {
        Self {
            batch: Places::ALL,
            heads: Places::ALL,
            group: Places::ALL,
            group_size,
            queries: Places::ALL,
            keys: Places::ALL,
        }
    }
}

/// Which weights are dropped; the others are larger for it. Sizes of the whole fit in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share of weights that are dropped, less than one.
    pub share: f64,
    /// The key of the random numbers.
    pub seed: [u32; 2],
    /// Where the part is.
    pub origin: Origin,
}

/// Counters at a time: enough to fill vector registers.
const COUNTERS: usize = 8;
/// Numbers of a counter.
const PER: usize = 4;

impl Dropout {
    /// Writes what the weights of a query and some keys are multiplied with: zero, or one by the share that is kept.
    ///
    /// `at` are batch element, head of keys and values, and member of its group, of the part.
    pub(super) fn factors<T: Real>(
        &self,
        at: [usize; 3],
        query: usize,
        keys: Range<usize>,
        factors: &mut [T],
    ) {
        let origin = &self.origin;
        let [batch, head, member] = at;
        let head = origin.heads.of(head) * origin.group_size + origin.group.of(member);
        let row = [origin.queries.of(query), head, origin.batch.of(batch)].map(|at| at as u32);
        let words = |counters: [u32; COUNTERS]| {
            let [query, head, batch] = row.map(|at| [at; COUNTERS]);
            philox4x32([counters, query, head, batch], self.seed)
        };
        let kept = 1.0 - self.share;
        // A word below this is kept: as `Distribution::Bernoulli` of a mesh.
        let threshold = (kept * (1u64 << 32) as f64) as u64;
        let kept = T::of(kept.recip());
        let factor = |word: u32| match u64::from(word) < threshold {
            true => kept,
            false => T::ZERO,
        };
        let (mut key, end) = (keys.start, keys.end);
        let mut rest = &mut factors[..keys.len()];
        while key < end {
            let place = origin.keys.of(key);
            let (counter, lane) = ((place / PER) as u32, place % PER);
            let in_a_row = origin.keys.step == 1;
            let num = if in_a_row && lane == 0 && end - key >= COUNTERS * PER {
                let words = words(std::array::from_fn(|n| counter + n as u32));
                for (n, factors) in rest[..COUNTERS * PER].chunks_exact_mut(PER).enumerate() {
                    for (word, out) in words.iter().zip(factors) {
                        *out = factor(word[n]);
                    }
                }
                COUNTERS * PER
            } else {
                // Up to the next whole counter, or one counter for each key.
                let most = if in_a_row { PER - lane } else { COUNTERS };
                let num = most.min(end - key);
                let place = |n: usize| origin.keys.of(key + n.min(num - 1));
                let words = words(std::array::from_fn(|n| (place(n) / PER) as u32));
                for (n, out) in rest[..num].iter_mut().enumerate() {
                    *out = factor(words[place(n) % PER][n]);
                }
                num
            };
            rest = &mut rest[num..];
            key += num;
        }
    }
}

/// Multiplies each.
pub(super) fn times_each<T: Real>(row: &mut [T], factors: &[T]) {
    for (x, factor) in row.iter_mut().zip(factors) {
        *x = x.times(*factor);
    }
}
