//! The backward: the weights of a block are made again from the log-sum-exp, so that none were kept.

use rayon::prelude::*;

use super::block::{Places, filled, next, product};
use super::dropout::times_each;
use super::forward::{KEYS, Made, QUERIES};
use super::view::Matrix;
use super::{Inputs, Real, View};

/// Gradients of an attention's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients<T> {
    /// Gradient of queries, `[batch, heads, group, queries, width]`.
    pub q: Vec<T>,
    /// Gradient of keys, `[batch, heads, keys, width]`.
    pub k: Vec<T>,
    /// Gradient of values, `[batch, heads, keys, value_width]`.
    pub v: Vec<T>,
    /// Gradient of the bias, `[batch, heads, group, queries, keys]`; empty if it is not asked for.
    pub bias: Vec<T>,
}

/// The work for one head of keys and values.
struct Job<'a, T> {
    head: usize,
    q: &'a mut [T],
    k: &'a mut [T],
    v: &'a mut [T],
    bias: &'a mut [T],
}

struct Scratch<T> {
    weights: Vec<T>,
    factors: [T; KEYS],
    gradients: Vec<T>,
}

/// Returns the gradients of the inputs, of that of the result (`[batch, heads, group, queries, value_width]`) and of what
/// the forward made.
///
/// # Panics
/// If a shape is not that of the sizes.
pub fn backward<T: Real>(
    inputs: &Inputs<'_, T>,
    made: Made<'_, T>,
    gradient: View<'_, T, 5>,
    with_bias: bool,
) -> Gradients<T> {
    inputs.check();
    let sizes = inputs.sizes;
    let num_heads = sizes.batch * sizes.heads;
    let of_q = sizes.group * sizes.queries * sizes.width;
    let of_k = sizes.keys * sizes.width;
    let of_v = sizes.keys * sizes.value_width;
    let of_bias = match with_bias {
        true => sizes.group * sizes.queries * sizes.keys,
        false => 0,
    };
    let lens = [of_q, of_k, of_v, of_bias];
    let mut made_of = lens.map(|of_head| Vec::with_capacity(num_heads * of_head));
    let mut rest = made_of.each_mut().map(|all| all.spare_capacity_mut());
    let jobs: Vec<[Places<'_, T>; 4]> = (0..num_heads)
        .map(|_| {
            let mut lens = lens.into_iter();
            rest.each_mut()
                .map(|rest| next(rest, lens.next().expect("four lengths")))
        })
        .collect();
    let scratch = || Scratch {
        weights: vec![T::ZERO; QUERIES * KEYS.min(sizes.keys)],
        gradients: vec![T::ZERO; QUERIES * KEYS.min(sizes.keys)],
        factors: [T::ONE; KEYS],
    };
    let jobs = jobs.into_par_iter().enumerate();
    jobs.for_each_init(scratch, |scratch, (head, places)| {
        let [q, k, v, bias] = places.map(|places| filled(places, T::ZERO));
        let job = Job {
            head,
            q,
            k,
            v,
            bias,
        };
        inputs.head_backward(made, gradient, job, scratch);
    });
    for (all, of_head) in made_of.iter_mut().zip(lens) {
        // SAFETY: the jobs have the places of all heads, and have written them.
        unsafe { all.set_len(num_heads * of_head) };
    }
    let [q, k, v, bias] = made_of;
    Gradients { q, k, v, bias }
}

impl<T: Real> Inputs<'_, T> {
    fn head_backward(
        &self,
        made: Made<'_, T>,
        gradient: View<'_, T, 5>,
        job: Job<'_, T>,
        scratch: &mut Scratch<T>,
    ) {
        let sizes = self.sizes;
        let [num_queries, num_keys] = [sizes.queries, sizes.keys];
        let [width, value_width] = [sizes.width, sizes.value_width];
        for member in 0..sizes.group {
            let head = job.head * sizes.group + member;
            let index = self.index(head);
            let [batch, group, _] = index;
            let q = self.q.matrix(&[batch, group, member]);
            let (k, v) = (
                self.k.matrix(&[batch, group]),
                self.v.matrix(&[batch, group]),
            );
            let out_gradient = gradient.matrix(&[batch, group, member]);
            let out = &made.out[head * num_queries * value_width..][..num_queries * value_width];
            let out = Matrix::of(out, num_queries, value_width);
            let log_sum_exp = &made.log_sum_exp[head * num_queries..][..num_queries];
            for first in (0..num_queries).step_by(QUERIES) {
                let queries = first..num_queries.min(first + QUERIES);
                let rows = queries.len();
                // What a row's weights sum their gradients to: the same as `out . gradient`.
                let mut means = [T::ZERO; QUERIES];
                for (mean, query) in means.iter_mut().zip(queries.clone()) {
                    for column in 0..value_width {
                        let term = out.at(query, column).times(*out_gradient.at(query, column));
                        *mean = mean.plus(term);
                    }
                }
                let of_queries =
                    &mut job.q[(member * num_queries + first) * width..][..rows * width];
                let seen = self.visible.of_any(queries.clone(), num_keys);
                for start in seen.clone().step_by(KEYS) {
                    let keys = start..seen.end.min(start + KEYS);
                    let len = rows * keys.len();
                    let weights = &mut scratch.weights[..len];
                    self.scores(head, queries.clone(), keys.clone(), weights);
                    for (row, weights) in weights.chunks_exact_mut(keys.len()).enumerate() {
                        let sum = log_sum_exp[first + row];
                        // A row without a visible key has scores of -infinity alone.
                        T::exp_each(weights, if sum != T::HIDDEN { sum } else { T::ZERO });
                    }
                    let of_out = out_gradient.rows(queries.clone());
                    let gradients = &mut scratch.gradients[..len];
                    product(
                        gradients,
                        of_out,
                        v.rows(keys.clone()).transposed(),
                        T::ONE,
                        false,
                    );
                    for (row, gradients) in gradients.chunks_exact_mut(keys.len()).enumerate() {
                        let weights = &mut weights[row * keys.len()..][..keys.len()];
                        match &self.dropout {
                            None => T::softmax_backward(gradients, weights, means[row]),
                            Some(dropout) => {
                                let factors = &mut scratch.factors[..keys.len()];
                                dropout.factors(index, first + row, keys.clone(), factors);
                                times_each(gradients, factors);
                                T::softmax_backward(gradients, weights, means[row]);
                                times_each(weights, factors);
                            }
                        }
                        if !job.bias.is_empty() {
                            let at = (member * num_queries + first + row) * num_keys;
                            job.bias[at..][keys.clone()].copy_from_slice(gradients);
                        }
                    }
                    let weights = Matrix::of(&*weights, rows, keys.len());
                    let of_values = &mut job.v[keys.start * value_width..keys.end * value_width];
                    product(of_values, weights.transposed(), of_out, T::ONE, true);
                    let gradients = Matrix::of(&*gradients, rows, keys.len());
                    product(
                        of_queries,
                        gradients,
                        k.rows(keys.clone()),
                        self.scale,
                        true,
                    );
                    let of_keys = &mut job.k[keys.start * width..keys.end * width];
                    let queries = q.rows(queries.clone());
                    product(of_keys, gradients.transposed(), queries, self.scale, true);
                }
            }
        }
    }
}
