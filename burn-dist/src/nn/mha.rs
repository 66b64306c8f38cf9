//! Attention by burn-nn's module as one operation.

use burn_core::tensor::{Bool, Shape, Tensor};
use burn_nn::attention::{MhaInput as ComposedInput, MultiHeadAttention};

use super::{AttentionOptions, attention};

/// The inputs of [`FusedAttention::attend`]: burn-nn's `MhaInput` by the same calls, since the fields of that one are
/// private.
#[derive(Clone, Debug)]
pub struct MhaInput {
    /// Queries, `[b, q, d_model]`.
    pub query: Tensor<3>,
    /// Keys, which queries are compared with, `[b, k, d_model]`.
    pub key: Tensor<3>,
    /// Values, one for each key, `[b, k, d_model]`.
    pub value: Tensor<3>,
    /// The keys that are hidden (true) from all queries, `[b, k]`; dims of size one stretch.
    pub mask_pad: Option<Tensor<2, Bool>>,
    /// The keys that are hidden (true) from a query, `[b, q, k]`; dims of size one stretch.
    pub mask_attn: Option<Tensor<3, Bool>>,
}

impl MhaInput {
    /// Returns the input of a sequence that attends to itself, `[b, q, d_model]`.
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Returns the input of a sequence that attends to another, in the shapes of the fields.
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self {
            query,
            key,
            value,
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// Hides keys from all queries, `[b, k]`.
    pub fn mask_pad(self, mask: Tensor<2, Bool>) -> Self {
        Self {
            mask_pad: Some(mask),
            ..self
        }
    }

    /// Hides keys from queries, `[b, q, k]`.
    pub fn mask_attn(self, mask: Tensor<3, Bool>) -> Self {
        Self {
            mask_attn: Some(mask),
            ..self
        }
    }

    /// # Panics
    /// If a shape does not fit the model's width or another shape.
    fn check(&self, d_model: usize) {
        let [batch, queries, _] = self.query.dims();
        let [_, keys, _] = self.key.dims();
        let sequences = [
            ("query", &self.query, [batch, queries, d_model]),
            ("key", &self.key, [batch, keys, d_model]),
            ("value", &self.value, [batch, keys, d_model]),
        ];
        for (what, tensor, expected) in sequences {
            let found = tensor.dims();
            assert!(
                found == expected,
                "attention of d_model {d_model} needs a {what} of shape {expected:?}, and this one has {found:?}: give \
                 query, key and value the same batch and the model's width, and key and value the same length"
            );
        }
        let masks = [
            (
                "mask_pad",
                "[b, k]",
                self.mask_pad.as_ref().map(Tensor::shape),
                vec![batch, keys],
            ),
            (
                "mask_attn",
                "[b, q, k]",
                self.mask_attn.as_ref().map(Tensor::shape),
                vec![batch, queries, keys],
            ),
        ];
        for (what, dims, found, expected) in masks {
            assert!(
                found
                    .as_ref()
                    .is_none_or(|found| stretches(found, &expected)),
                "attention of {queries} queries to {keys} keys, in a batch of {batch}, needs a {what} of shape \
                 {expected:?}, and this one has {:?}: give it the dims {dims}, true where keys are hidden",
                found.map(|found| found.to_vec()).unwrap_or_default()
            );
        }
    }
}

fn stretches(found: &Shape, expected: &[usize]) -> bool {
    let mut dims = found.iter().zip(expected);
    dims.all(|(found, expected)| *found == 1 || found == expected)
}

/// The input of [`MultiHeadAttention::forward`], which also returns the weights.
impl From<MhaInput> for ComposedInput {
    fn from(input: MhaInput) -> Self {
        let mut composed = Self::new(input.query, input.key, input.value);
        if let Some(mask) = input.mask_pad {
            composed = composed.mask_pad(mask);
        }
        if let Some(mask) = input.mask_attn {
            composed = composed.mask_attn(mask);
        }
        composed
    }
}

/// Attention of burn-nn's [`MultiHeadAttention`] as one operation, in memory linear in the sequence.
///
/// The module stays burn-nn's: its configuration, its parameters and its record are what they were. Its `forward` also
/// returns the weights, and so computes all of them.
///
/// ```
/// use burn::nn::attention::MultiHeadAttentionConfig;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_dist::nn::{FusedAttention, MhaInput};
/// use burn_dist::DeviceMesh;
///
/// let device = DeviceMesh::parse("dp=2")?.device();
/// let mha = MultiHeadAttentionConfig::new(32, 4).init(&device);
/// let x = Tensor::<3>::random([2, 16, 32], Distribution::Default, &device);
/// let input = MhaInput::self_attn(x);
/// let composed = mha.forward(input.clone().into()).context;
/// let context = mha.attend(input);
/// context.into_data().assert_approx_eq::<f32>(&composed.into_data(), Default::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FusedAttention {
    /// Returns what `forward(input.into()).context` returns, but for rounding, and with the same gradients.
    ///
    /// In one operation, by [`attention()`], but where that would be another function. Then it is `forward`:
    ///
    /// - with dropout, while gradients are tracked: burn-nn drops scores, before the softmax, and not weights;
    /// - with `quiet_softmax`;
    /// - with a `min_float` above -1e4, the default: such scores need not be hidden.
    ///
    /// Hidden scores have no weight. In `forward` they are `min_float` and have none either, unless all scores that a
    /// query sees lie about as low. A query all of whose keys are hidden gets the mean of the values, as there.
    ///
    /// # Shapes
    /// As the fields of [`MhaInput`] say; the result is `[b, q, d_model]`.
    ///
    /// # Communication
    /// That of [`attention()`], and of the linear layers.
    ///
    /// # Panics
    /// If shapes do not fit.
    ///
    /// # Source
    /// `MultiHeadAttention::forward` of burn-nn 0.22.
    fn attend(&self, input: MhaInput) -> Tensor<3>;
}

/// The largest `min_float` that hides: `exp` of a score this far below another one is zero in every type.
const HIDES: f64 = -1e4;

impl FusedAttention for MultiHeadAttention {
    fn attend(&self, input: MhaInput) -> Tensor<3> {
        input.check(self.d_model);
        let drops = self.dropout.prob > 0.0 && input.query.device().is_autodiff();
        if drops || self.quiet_softmax || self.min_float > HIDES {
            return self.forward(input.into()).context;
        }
        let [batch, queries, d_model] = input.query.dims();
        let by_head = |x: Tensor<3>| {
            let [_, len, _] = x.dims();
            x.reshape([batch, len, self.n_heads, self.d_k])
                .swap_dims(1, 2)
        };
        let q = by_head(self.query.forward(input.query));
        let k = by_head(self.key.forward(input.key));
        let v = by_head(self.value.forward(input.value));
        // As burn-nn rounds it.
        let scale = f64::from((self.d_k as f32).sqrt()).recip();
        let options = AttentionOptions {
            mask: hidden(input.mask_pad, input.mask_attn),
            ..AttentionOptions::default().scale(scale)
        };
        let context = match options.mask.clone() {
            None => attention(q, k, v, options),
            Some(mask) => {
                let mean = v.clone().mean_dim(2);
                let context = attention(q, k, v, options);
                let shape = context.shape();
                let sees_none = mask.all_dim(3).expand(shape.clone());
                context.mask_where(sees_none, mean.expand(shape))
            }
        };
        let context = context.swap_dims(1, 2).reshape([batch, queries, d_model]);
        self.output.forward(context)
    }
}

/// Returns what is hidden, `[b, 1, q, k]`, with dims of size one that stretch.
fn hidden(
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
) -> Option<Tensor<4, Bool>> {
    let of_pad = mask_pad.map(|mask| {
        let [batch, keys] = mask.dims();
        mask.reshape([batch, 1, 1, keys])
    });
    let of_attn = mask_attn.map(|mask| mask.unsqueeze_dim::<4>(1));
    match (of_pad, of_attn) {
        (Some(pad), Some(attn)) => Some(pad.bool_or(attn)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
