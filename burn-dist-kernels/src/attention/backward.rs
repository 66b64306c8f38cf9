//! The backward: the weights of a block are made again from the log-sum-exp, so that none were kept.

use rayon::prelude::*;

use super::block::{Places, filled, next, product};
use super::dropout::times_each;
use super::forward::{KEYS, Made, QUERIES};
use super::view::{Matrix, Unwritten};
use super::{Array, Inputs, Real, View};

/// Gradients of an attention's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients<T> {
    /// Gradient of queries, `[batch, heads, group, queries, width]`: its dims lie in the order of those of the queries.
    pub q: Array<T, 5>,
    /// Gradient of keys, `[batch, heads, keys, width]`, as the keys.
    pub k: Array<T, 4>,
    /// Gradient of values, `[batch, heads, keys, value_width]`, as the values.
    pub v: Array<T, 4>,
    /// Gradient of the bias, `[batch, heads, group, queries, keys]`; empty if it is not asked for.
    pub bias: Vec<T>,
}

struct Scratch<T> {
    weights: Vec<T>,
    factors: [T; KEYS],
    gradients: Vec<T>,
    row: Vec<T>,
    /// Sums for the queries of a block, and for all keys and values of a head.
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
}

/// See [`Attend::backward`](super::Attend::backward).
pub(super) fn backward<T: Real>(
    inputs: &Inputs<'_, T>,
    made: Made<'_, T>,
    gradient: View<'_, T, 5>,
    with_bias: bool,
) -> Gradients<T> {
    inputs.check();
    let sizes = inputs.sizes;
    let num_heads = sizes.batch * sizes.heads;
    let q = Unwritten::new(inputs.q.shape(), inputs.q.strides());
    let k = Unwritten::new(inputs.k.shape(), inputs.k.strides());
    let v = Unwritten::new(inputs.v.shape(), inputs.v.strides());
    let of_bias = match with_bias {
        true => sizes.group * sizes.queries * sizes.keys,
        false => 0,
    };
    let mut bias = Vec::with_capacity(num_heads * of_bias);
    let mut rest = bias.spare_capacity_mut();
    let jobs: Vec<Places<'_, T>> = (0..num_heads).map(|_| next(&mut rest, of_bias)).collect();
    let scratch = || Scratch {
        weights: vec![T::ZERO; QUERIES * KEYS.min(sizes.keys)],
        gradients: vec![T::ZERO; QUERIES * KEYS.min(sizes.keys)],
        factors: [T::ONE; KEYS],
        row: Vec::new(),
        q: vec![T::ZERO; QUERIES.min(sizes.queries) * sizes.width],
        k: vec![T::ZERO; sizes.keys * sizes.width],
        v: vec![T::ZERO; sizes.keys * sizes.value_width],
    };
    let jobs = jobs.into_par_iter().enumerate();
    jobs.for_each_init(scratch, |scratch, (head, bias)| {
        let bias = filled(bias, T::ZERO);
        let write_q = |index: &[usize], first, rows: &[T]| {
            // SAFETY: no other job has a query of this head's group.
            unsafe { q.write(index, first, rows) };
        };
        inputs.head_backward(made, gradient, head, bias, scratch, write_q);
        let index = [head / sizes.heads, head % sizes.heads];
        // SAFETY: no other job has this head.
        unsafe {
            k.write(&index, 0, &scratch.k);
            v.write(&index, 0, &scratch.v);
        }
    });
    // SAFETY: the jobs have all heads, and have written all of each.
    unsafe {
        bias.set_len(num_heads * of_bias);
        Gradients {
            q: q.written(),
            k: k.written(),
            v: v.written(),
            bias,
        }
    }
}

impl<T: Real> Inputs<'_, T> {
    /// Leaves the gradients of one head of keys and values in the scratch memory, and has those of its queries written.
    fn head_backward(
        &self,
        made: Made<'_, T>,
        gradient: View<'_, T, 5>,
        shared: usize,
        bias: &mut [T],
        scratch: &mut Scratch<T>,
        write_q: impl Fn(&[usize], usize, &[T]),
    ) {
        let sizes = self.sizes;
        scratch.k.fill(T::ZERO);
        scratch.v.fill(T::ZERO);
        let [num_queries, num_keys] = [sizes.queries, sizes.keys];
        let [width, value_width] = [sizes.width, sizes.value_width];
        for member in 0..sizes.group {
            let head = shared * sizes.group + member;
            let index = self.index(head);
            let [batch, group, _] = index;
            let q = self.q.matrix(&[batch, group, member]);
            let (k, v) = (
                self.k.matrix(&[batch, group]),
                self.v.matrix(&[batch, group]),
            );
            let out_gradient = gradient.matrix(&[batch, group, member]);
            let out = made.out.matrix(&index);
            let log_sum_exp = &made.log_sum_exp[head * num_queries..][..num_queries];
            for first in (0..num_queries).step_by(QUERIES) {
                let queries = first..num_queries.min(first + QUERIES);
                let rows = queries.len();
                // What a row's weights sum their gradients to: the same as `out . gradient`.
                let mut means = [T::ZERO; QUERIES];
                for (mean, query) in means.iter_mut().zip(queries.clone()) {
                    *mean = T::dot(out.row(query), out_gradient.row_in(query, &mut scratch.row));
                }
                let of_queries = &mut scratch.q[..rows * width];
                of_queries.fill(T::ZERO);
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
                        if !bias.is_empty() {
                            let at = (member * num_queries + first + row) * num_keys;
                            bias[at..][keys.clone()].copy_from_slice(gradients);
                        }
                    }
                    let weights = Matrix::of(&*weights, rows, keys.len());
                    let of_values =
                        &mut scratch.v[keys.start * value_width..keys.end * value_width];
                    product(of_values, weights.transposed(), of_out, T::ONE, true);
                    let gradients = Matrix::of(&*gradients, rows, keys.len());
                    product(
                        of_queries,
                        gradients,
                        k.rows(keys.clone()),
                        self.scale,
                        true,
                    );
                    let of_keys = &mut scratch.k[keys.start * width..keys.end * width];
                    let queries = q.rows(queries.clone());
                    product(of_keys, gradients.transposed(), queries, self.scale, true);
                }
                write_q(&index, first, of_queries);
            }
        }
    }
}
