//! Attention of a backend's own operations, a block of keys at a time: scores of all queries and of some keys are alive
//! at once.

use std::ops::Range;

use burn_backend::tensor::FloatTensor;
use burn_core::tensor::{Bool, DType, Device, Int, Tensor};

use super::in_burn::InBurn;
use super::types::{Scores, statistics_of};

/// Keys of a block.
const KEYS: usize = 512;

pub(super) fn tensor<B: InBurn, const D: usize>(primitive: FloatTensor<B>) -> Tensor<D> {
    B::tensor(primitive)
}

pub(super) fn float<B: InBurn, const D: usize>(tensor: Tensor<D>) -> FloatTensor<B> {
    B::float(tensor)
}

/// Returns which of some keys are hidden from queries by their position, `[1, 1, 1, q, k]`, if any can be.
pub(super) fn hidden(
    scores: Scores,
    queries: usize,
    keys: Range<usize>,
    device: &Device,
) -> Option<Tensor<5, Bool>> {
    let positions = Tensor::<1, Int>::arange(0..queries as i64, device);
    let positions = positions * scores.step as i64 + scores.offset as i64;
    let positions = positions.reshape([1, 1, 1, queries, 1]);
    let num_keys = keys.len();
    let of_keys = Tensor::<1, Int>::arange(keys.start as i64..keys.end as i64, device);
    let of_keys = of_keys.reshape([1, 1, 1, 1, num_keys]);
    let behind = scores
        .causal
        .then(|| of_keys.clone().greater(positions.clone()));
    let before = scores
        .window
        .map(|window| of_keys.lower_equal(positions - window as i64));
    match (behind, before) {
        (Some(behind), Some(before)) => Some(behind.bool_or(before)),
        (one, other) => one.or(other),
    }
}

/// Inputs as tensors, all of five dims, in the type that statistics have.
pub(super) struct Tensors {
    q: Tensor<5>,
    k: Tensor<5>,
    v: Tensor<5>,
    mask: Option<Tensor<5, Bool>>,
    bias: Option<Tensor<5>>,
    scores: Scores,
    dtype: DType,
}

impl Tensors {
    /// Takes keys and values with their heads in groups of one.
    pub(super) fn new(
        [q, k, v]: [Tensor<5>; 3],
        mask: Option<Tensor<5, Bool>>,
        bias: Option<Tensor<5>>,
        scores: Scores,
    ) -> Self {
        assert!(
            scores.dropout.is_none(),
            "blocks of operations drop no weights: ask `AttentionBackend::DROPS` before"
        );
        let dtype = q.dtype();
        let wide = statistics_of(dtype);
        Self {
            q: q.cast(wide),
            k: k.cast(wide),
            v: v.cast(wide),
            mask,
            bias: bias.map(|bias| bias.cast(wide)),
            scores,
            dtype,
        }
    }

    fn wide(&self) -> DType {
        self.q.dtype()
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let keys = self.k.dims()[3];
        (0..keys)
            .step_by(KEYS)
            .map(move |start| start..keys.min(start + KEYS))
    }

    /// Returns the keys or values of a block.
    fn block(of: &Tensor<5>, keys: &Range<usize>) -> Tensor<5> {
        of.clone().narrow(3, keys.start, keys.len())
    }

    /// Returns the scores of a block, hidden ones as -infinity.
    fn scores(&self, keys: &Range<usize>) -> Tensor<5> {
        let queries = self.q.dims()[3];
        // A dim of size one stretches over all blocks.
        let of_block = |size: usize| match size {
            1 => 0..1,
            _ => keys.clone(),
        };
        let k = Self::block(&self.k, keys).swap_dims(3, 4);
        let mut scores = self.q.clone().matmul(k) * self.scores.scale;
        if let Some(bias) = &self.bias {
            let range = of_block(bias.dims()[4]);
            scores = scores + bias.clone().narrow(4, range.start, range.len());
        }
        let mask = self.mask.as_ref().map(|mask| {
            let range = of_block(mask.dims()[4]);
            mask.clone().narrow(4, range.start, range.len())
        });
        let hidden = hidden(self.scores, queries, keys.clone(), &scores.device());
        for mask in mask.into_iter().chain(hidden) {
            scores = scores.mask_fill(mask, f64::NEG_INFINITY);
        }
        scores
    }
}

/// Puts zeros in the place of -infinity, which no row with a visible key has.
fn finite(largest: Tensor<5>) -> Tensor<5> {
    let has_none = largest.clone().equal_elem(f64::NEG_INFINITY);
    largest.mask_fill(has_none, 0.0)
}

/// Attends: returns the result, and the logarithm of the sum of exponentials.
pub(super) fn forward(this: Tensors) -> (Tensor<5>, Tensor<4>) {
    let [batch, heads, group, queries, _] = this.q.dims();
    let value_width = this.v.dims()[4];
    let device = this.q.device();
    let rows = |width: usize| [batch, heads, group, queries, width];
    let options = (&device, this.wide());
    let mut out = Tensor::<5>::zeros(rows(value_width), options);
    let mut sum = Tensor::<5>::zeros(rows(1), options);
    let mut largest = Tensor::<5>::full(rows(1), f64::NEG_INFINITY, options);
    for keys in this.blocks() {
        let scores = this.scores(&keys);
        let found = largest.clone().max_pair(scores.clone().max_dim(4));
        let shift = finite(found.clone());
        let weights = (scores - shift.clone()).exp();
        let factor = (largest - shift).exp();
        sum = sum * factor.clone() + weights.clone().sum_dim(4);
        out = out * factor + weights.matmul(Tensors::block(&this.v, &keys));
        largest = found;
    }
    let is_empty = sum.clone().equal_elem(0.0);
    let log_sum_exp = finite(largest) + sum.clone().log();
    let log_sum_exp = log_sum_exp.mask_fill(is_empty.clone(), f64::NEG_INFINITY);
    let out = out / sum.mask_fill(is_empty, 1.0);
    (out.cast(this.dtype), log_sum_exp.squeeze_dim::<4>(4))
}
