//! Inputs, results and gradients of attention, and how scores are made.

use std::hash::{Hash, Hasher};

use burn_backend::Backend;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_core::tensor::DType;
use burn_dist_kernels::attention::{Origin, Visible};
use burn_dist_plan::layout::Spaced;

/// How scores are made of products, and which of them count.
///
/// The position of query `i` is `i * step + offset`, that of key `j` is `j`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scores {
    /// The factor of products.
    pub scale: f64,
    /// Hides keys behind a query's own position.
    pub causal: bool,
    /// How many keys a query sees at most, up to its own position.
    pub window: Option<usize>,
    /// The position of the first query.
    pub offset: isize,
    /// How many positions lie between a query and the next.
    pub step: usize,
    /// Which weights are dropped.
    pub dropout: Option<Dropped>,
}

/// Which weights are dropped: by a seed, which is an input, and by where they are in the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dropped {
    /// The share of weights.
    pub share: f64,
    /// Where the queries and keys are in the whole.
    pub origin: Origin,
}

impl Scores {
    /// Returns whether scores depend on the positions of queries and keys.
    pub(super) fn depend_on_positions(&self) -> bool {
        self.causal || self.window.is_some()
    }

    /// Returns which keys a query sees.
    pub(super) fn visible(&self) -> Visible {
        Visible {
            causal: self.causal,
            window: self.window,
            offset: self.offset,
            step: self.step,
        }
    }
}

impl Hash for Scores {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.scale.to_bits().hash(state);
        (self.causal, self.window, self.offset, self.step).hash(state);
        let dropout = self
            .dropout
            .map(|dropout| (dropout.share.to_bits(), dropout.origin));
        dropout.hash(state);
    }
}

/// Queries, keys and values, with the heads in groups that share a head of keys and values.
#[derive(Clone, Debug)]
pub(crate) struct AttentionInputs<B: Backend> {
    /// Queries, `[b, g, n, q, e]`.
    pub q: FloatTensor<B>,
    /// Keys, `[b, g, k, e]`.
    pub k: FloatTensor<B>,
    /// Values, `[b, g, k, v]`.
    pub v: FloatTensor<B>,
    /// The keys that are hidden (true) from each query, `[b, g, n, q, k]`; dims of size one stretch.
    pub mask: Option<BoolTensor<B>>,
    /// A term that is added to scores, `[b, g, n, q, k]`; dims of size one stretch.
    pub bias: Option<FloatTensor<B>>,
    /// The seed of random numbers, `[2]`, where weights are dropped: both words are at least zero.
    pub seed: Option<IntTensor<B>>,
}

/// Results of the forward.
#[derive(Clone, Debug)]
pub(crate) struct AttentionMade<B: Backend> {
    /// The result, `[b, g, n, q, v]`.
    pub out: FloatTensor<B>,
    /// The logarithm of the sum of `exp(score)` over the keys that a query sees, `[b, g, n, q]`, in f32 where the
    /// inputs have fewer bits.
    pub log_sum_exp: FloatTensor<B>,
}

/// Gradients of the inputs, in their shapes.
#[derive(Clone, Debug)]
pub(crate) struct AttentionGradients<B: Backend> {
    /// The gradient of queries.
    pub q: FloatTensor<B>,
    /// The gradient of keys.
    pub k: FloatTensor<B>,
    /// The gradient of values.
    pub v: FloatTensor<B>,
    /// The gradient of the bias, if it was asked for, `[b, g, n, q, k]`: not yet summed over dims that were stretched.
    pub bias: Option<FloatTensor<B>>,
}

/// A backend that attends in one operation, with kernels of its own.
///
/// # Source
/// Dao, "FlashAttention-2" (arXiv:2307.08691), section 3.1.
pub(crate) trait AttentionBackend: Backend {
    /// Attends.
    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self>;

    /// Returns the gradients of the inputs, of that of the result; that of the bias if `with_bias`.
    fn attention_backward(
        inputs: AttentionInputs<Self>,
        made: AttentionMade<Self>,
        gradient: FloatTensor<Self>,
        scores: Scores,
        with_bias: bool,
    ) -> AttentionGradients<Self>;
}

/// Some of the keys of an attention, and where they stand in the order in which a rank attends to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyBlock {
    /// Which keys.
    pub(super) keys: Spaced,
    /// True for the first keys that the rank attends to.
    pub(super) first: bool,
    /// True for the last keys that the rank attends to.
    pub(super) last: bool,
}

/// The type that statistics of tensors of a type are in.
pub(super) fn statistics_of(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
