//! Attention of a backend's own operations, a block of keys at a time: scores of all queries and of some keys are alive
//! at once.

use std::ops::Range;

use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, TensorMetadata};
use burn_core::tensor::{Bool, DType, Int, Tensor, TensorPrimitive};

use super::types::{AttentionGradients, AttentionInputs, AttentionMade, Scores, statistics_of};

/// Keys of a block.
const KEYS: usize = 512;

pub(super) fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

pub(super) fn float<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// Returns which of some keys are hidden from queries by their position, `[1, 1, 1, q, k]`, if any can be.
pub(super) fn hidden<B: Backend>(
    scores: Scores,
    queries: usize,
    keys: Range<usize>,
    device: &B::Device,
) -> Option<Tensor<B, 5, Bool>> {
    let positions = Tensor::<B, 1, Int>::arange(0..queries as i64, device);
    let positions = positions * scores.step as i64 + scores.offset as i64;
    let positions = positions.reshape([1, 1, 1, queries, 1]);
    let num_keys = keys.len();
    let of_keys = Tensor::<B, 1, Int>::arange(keys.start as i64..keys.end as i64, device);
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
struct Tensors<B: Backend> {
    q: Tensor<B, 5>,
    k: Tensor<B, 5>,
    v: Tensor<B, 5>,
    mask: Option<Tensor<B, 5, Bool>>,
    bias: Option<Tensor<B, 5>>,
    scores: Scores,
    dtype: DType,
}

impl<B: Backend> Tensors<B> {
    fn new(inputs: AttentionInputs<B>, scores: Scores) -> Self {
        assert!(
            scores.dropout.is_none(),
            "blocks of operations drop no weights: ask `AttentionBackend::DROPS` before"
        );
        let dtype = inputs.q.dtype();
        let wide = statistics_of::<B>(&inputs.q);
        let five = |four: FloatTensor<B>| tensor::<B, 4>(four).unsqueeze_dim::<5>(2).cast(wide);
        Self {
            q: tensor::<B, 5>(inputs.q).cast(wide),
            k: five(inputs.k),
            v: five(inputs.v),
            mask: inputs.mask.map(Tensor::from_primitive),
            bias: inputs.bias.map(|bias| tensor::<B, 5>(bias).cast(wide)),
            scores,
            dtype,
        }
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<B> {
        let keys = self.k.dims()[3];
        (0..keys)
            .step_by(KEYS)
            .map(move |start| start..keys.min(start + KEYS))
    }

    /// Returns the keys or values of a block.
    fn block(of: &Tensor<B, 5>, keys: &Range<usize>) -> Tensor<B, 5> {
        of.clone().narrow(3, keys.start, keys.len())
    }

    /// Returns the scores of a block, hidden ones as -infinity.
    fn scores(&self, keys: &Range<usize>) -> Tensor<B, 5> {
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
fn finite<B: Backend>(largest: Tensor<B, 5>) -> Tensor<B, 5> {
    let has_none = largest.clone().equal_elem(f64::NEG_INFINITY);
    largest.mask_fill(has_none, 0.0)
}

/// Attends.
pub(super) fn forward<B: Backend>(inputs: AttentionInputs<B>, scores: Scores) -> AttentionMade<B> {
    let this = Tensors::new(inputs, scores);
    let [batch, heads, group, queries, _] = this.q.dims();
    let value_width = this.v.dims()[4];
    let device = this.q.device();
    let rows = |width: usize| [batch, heads, group, queries, width];
    let options = (&device, statistics_of::<B>(&float(this.q.clone())));
    let mut out = Tensor::<B, 5>::zeros(rows(value_width), options);
    let mut sum = Tensor::<B, 5>::zeros(rows(1), options);
    let mut largest = Tensor::<B, 5>::full(rows(1), f64::NEG_INFINITY, options);
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
    AttentionMade {
        out: float(out.cast(this.dtype)),
        log_sum_exp: float(log_sum_exp.squeeze_dim::<4>(4)),
    }
}

/// Returns the gradients of the inputs.
pub(super) fn backward<B: Backend>(
    inputs: AttentionInputs<B>,
    made: AttentionMade<B>,
    gradient: FloatTensor<B>,
    scores: Scores,
    with_bias: bool,
) -> AttentionGradients<B> {
    let this = Tensors::new(inputs, scores);
    let wide = statistics_of::<B>(&float(this.q.clone()));
    let gradient = tensor::<B, 5>(gradient).cast(wide);
    let mean = (gradient.clone() * tensor::<B, 5>(made.out).cast(wide)).sum_dim(4);
    let log_sum_exp = finite(tensor::<B, 4>(made.log_sum_exp).unsqueeze_dim::<5>(4));
    let mut to_q = this.q.zeros_like();
    let [mut to_k, mut to_v, mut to_bias] = [Vec::new(), Vec::new(), Vec::new()];
    for keys in this.blocks() {
        let weights = (this.scores(&keys) - log_sum_exp.clone()).exp();
        let to_weights = gradient
            .clone()
            .matmul(Tensors::block(&this.v, &keys).swap_dims(3, 4));
        let to_scores = weights.clone() * (to_weights - mean.clone());
        // The heads of a group share their key and value.
        to_v.push(weights.swap_dims(3, 4).matmul(gradient.clone()).sum_dim(2));
        let of_keys = to_scores.clone().swap_dims(3, 4).matmul(this.q.clone());
        to_k.push(of_keys.sum_dim(2) * scores.scale);
        to_q = to_q + to_scores.clone().matmul(Tensors::block(&this.k, &keys)) * scores.scale;
        if with_bias {
            to_bias.push(to_scores);
        }
    }
    let joined = |blocks: Vec<Tensor<B, 5>>, like: &Tensor<B, 5>| match blocks.is_empty() {
        true => like.zeros_like(),
        false => Tensor::cat(blocks, 3),
    };
    let four = |five: Tensor<B, 5>| float(five.squeeze_dim::<4>(2).cast(this.dtype));
    let has_bias = !to_bias.is_empty();
    AttentionGradients {
        k: four(joined(to_k, &this.k)),
        v: four(joined(to_v, &this.v)),
        q: float(to_q.cast(this.dtype)),
        bias: has_bias.then(|| float(Tensor::cat(to_bias, 4).cast(this.dtype))),
    }
}
