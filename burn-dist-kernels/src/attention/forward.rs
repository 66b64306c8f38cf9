//! The forward: blocks of queries, each with a running maximum and sum over blocks of keys.

use rayon::prelude::*;

use super::block::{Places, filled, next, product};
use super::dropout::times_each;
use super::view::{Matrix, Unwritten};
use super::{Array, Inputs, Real, View};

/// Queries of a block.
pub(super) const QUERIES: usize = 64;
/// Keys of a block.
pub(super) const KEYS: usize = 256;

/// The result of the forward, and what the backward needs of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward<T> {
    /// The result, `[batch, heads, group, queries, value_width]`: its dims lie in the order of those of the queries.
    pub out: Array<T, 5>,
    /// The logarithm of the sum of `exp(score)` over the keys that a query sees, `[batch, heads, group, queries]`;
    /// -infinity if it sees none.
    pub log_sum_exp: Vec<T>,
}

/// Results of the forward that the backward reads.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a, T> {
    /// The result, `[batch, heads, group, queries, value_width]`.
    pub out: View<'a, T, 5>,
    /// The log-sum-exp, `[batch, heads, group, queries]`.
    pub log_sum_exp: &'a [T],
}

impl<T> Forward<T> {
    /// Returns it as the backward reads it.
    pub fn made(&self) -> Made<'_, T> {
        Made {
            out: self.out.view(),
            log_sum_exp: &self.log_sum_exp,
        }
    }
}

/// Scores of a block of queries and keys, and what belongs to its queries.
struct Scratch<T> {
    out: Vec<T>,
    scores: Vec<T>,
    factors: [T; KEYS],
    largest: [T; QUERIES],
    sums: [T; QUERIES],
}

/// See [`Attend::forward`](super::Attend::forward).
pub(super) fn forward<T: Real>(inputs: &Inputs<'_, T>) -> Forward<T> {
    inputs.check();
    let sizes = inputs.sizes;
    let [queries, width] = [sizes.queries, sizes.value_width];
    let num_heads = sizes.batch * sizes.heads * sizes.group;
    let of_sums = num_heads * queries;
    let mut log_sum_exp = Vec::with_capacity(of_sums);
    let shape = [sizes.batch, sizes.heads, sizes.group, queries, width];
    let out = Unwritten::new(shape, inputs.q.strides());
    let blocks = queries.div_ceil(QUERIES);
    // One block of queries of one head each.
    let mut jobs: Vec<(usize, usize, Places<'_, T>)> = Vec::with_capacity(num_heads * blocks);
    let mut sums = &mut log_sum_exp.spare_capacity_mut()[..of_sums];
    for head in 0..num_heads {
        for block in 0..blocks {
            let rows = QUERIES.min(queries - block * QUERIES);
            jobs.push((head, block * QUERIES, next(&mut sums, rows)));
        }
    }
    let scratch = || Scratch {
        out: vec![T::ZERO; QUERIES.min(queries) * width],
        scores: vec![T::ZERO; QUERIES * KEYS.min(sizes.keys)],
        factors: [T::ONE; KEYS],
        largest: [T::HIDDEN; QUERIES],
        sums: [T::ZERO; QUERIES],
    };
    jobs.into_par_iter()
        .for_each_init(scratch, |scratch, (head, first, log_sum_exp)| {
            let log_sum_exp = filled(log_sum_exp, T::HIDDEN);
            inputs.block(head, first, log_sum_exp, scratch);
            let rows = &scratch.out[..log_sum_exp.len() * width];
            // SAFETY: no other job has these queries of this head.
            unsafe { out.write(&inputs.index(head), first, rows) };
        });
    // SAFETY: the jobs have all queries of all heads, and have written them.
    unsafe {
        log_sum_exp.set_len(of_sums);
        Forward {
            out: out.written(),
            log_sum_exp,
        }
    }
}

impl<T: Real> Inputs<'_, T> {
    /// Returns batch element, head and member of the group of a query head.
    pub(super) fn index(&self, head: usize) -> [usize; 3] {
        let (heads, group) = (self.sizes.heads, self.sizes.group);
        [head / group / heads, head / group % heads, head % group]
    }

    /// Attends with queries from `first` on, as many as `log_sum_exp` has places for, into the scratch memory's `out`.
    fn block(&self, head: usize, first: usize, log_sum_exp: &mut [T], scratch: &mut Scratch<T>) {
        let rows = log_sum_exp.len();
        let (width, num_keys) = (self.sizes.value_width, self.sizes.keys);
        let out = &mut scratch.out[..rows * width];
        out.fill(T::ZERO);
        let index = self.index(head);
        let [batch, group, _] = index;
        let queries = first..first + rows;
        let values = self.v.matrix(&[batch, group]);
        let (largest, sums) = (&mut scratch.largest[..rows], &mut scratch.sums[..rows]);
        largest.fill(T::HIDDEN);
        sums.fill(T::ZERO);
        let seen = self.visible.of_any(queries.clone(), num_keys);
        for start in seen.clone().step_by(KEYS) {
            let keys = start..seen.end.min(start + KEYS);
            let scores = &mut scratch.scores[..rows * keys.len()];
            self.scores(head, queries.clone(), keys.clone(), scores);
            for (row, scores) in scores.chunks_exact_mut(keys.len()).enumerate() {
                let found = T::largest(scores);
                let before = largest[row];
                if found > before {
                    largest[row] = found;
                }
                // Of a row without a visible key the weights are zeros.
                let shift = if largest[row] > T::HIDDEN {
                    largest[row]
                } else {
                    T::ZERO
                };
                if largest[row] > before && before > T::HIDDEN {
                    let mut factor = [before];
                    T::exp_each(&mut factor, shift);
                    sums[row] = sums[row].times(factor[0]);
                    T::scale(&mut out[row * width..(row + 1) * width], factor[0]);
                }
                sums[row] = sums[row].plus(T::exp_sum(scores, shift));
                // The sum is that of all weights.
                if let Some(dropout) = &self.dropout {
                    let factors = &mut scratch.factors[..keys.len()];
                    dropout.factors(index, first + row, keys.clone(), factors);
                    times_each(scores, factors);
                }
            }
            let weights = Matrix::of(&*scores, rows, keys.len());
            product(out, weights, values.rows(keys), T::ONE, true);
        }
        for (row, log_sum_exp) in log_sum_exp.iter_mut().enumerate() {
            // NaN is no zero, and stays.
            if sums[row] != T::ZERO {
                T::scale(
                    &mut out[row * width..(row + 1) * width],
                    sums[row].inverse(),
                );
                *log_sum_exp = largest[row].plus(sums[row].log());
            }
        }
    }

    /// Writes the scores of a block, hidden ones as -infinity.
    pub(super) fn scores(
        &self,
        head: usize,
        queries: std::ops::Range<usize>,
        keys: std::ops::Range<usize>,
        scores: &mut [T],
    ) {
        let [batch, group, member] = self.index(head);
        let q = self.q.matrix(&[batch, group, member]).rows(queries.clone());
        let k = self.k.matrix(&[batch, group]).rows(keys.clone());
        product(scores, q, k.transposed(), self.scale, false);
        let bias = self.bias.map(|bias| bias.matrix(&[batch, group, member]));
        let mask = self.mask.map(|mask| mask.matrix(&[batch, group, member]));
        let sees_all = self.visible.of(queries.start, self.sizes.keys).end >= keys.end
            && self.visible.of(queries.end - 1, self.sizes.keys).start <= keys.start;
        if bias.is_none() && mask.is_none() && sees_all {
            return;
        }
        for (row, scores) in queries.zip(scores.chunks_exact_mut(keys.len())) {
            if let Some(bias) = bias {
                for (key, score) in keys.clone().zip(&mut *scores) {
                    *score = score.plus(*bias.at(row, key));
                }
            }
            if let Some(mask) = mask {
                for (key, score) in keys.clone().zip(&mut *scores) {
                    if *mask.at(row, key) != 0 {
                        *score = T::HIDDEN;
                    }
                }
            }
            let seen = self.visible.of(row, self.sizes.keys);
            let start = seen.start.clamp(keys.start, keys.end) - keys.start;
            let end = seen.end.clamp(keys.start + start, keys.end) - keys.start;
            scores[..start].fill(T::HIDDEN);
            scores[end..].fill(T::HIDDEN);
        }
    }
}
