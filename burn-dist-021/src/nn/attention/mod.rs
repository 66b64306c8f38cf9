//! Attention as one operation, with its backward as another: memory linear in the sequence.

mod blocks;
mod flex;
mod gradient;
mod host;
mod mesh;
mod op;
mod ring;
mod types;

use burn_backend::Backend;
use burn_backend::tensor::FloatTensor;
use burn_core::tensor::activation::softmax;
use burn_core::tensor::{Bool, Distribution, Int, Tensor, TensorPrimitive};
pub use burn_dist_kernels::attention::{Origin, Places};
pub use types::{AttentionGradients, AttentionInputs, AttentionMade, Dropped, Scores};

/// Options of attention: masks, bias, scale, window and dropout.
#[derive(Clone, Debug)]
pub struct AttentionOptions<B: Backend> {
    /// Hides keys behind a query's own position. With more keys than queries, the last query is at the last key.
    pub causal: bool,
    /// The keys that are hidden (true) from each query, `[b, h, q, k]`; dims of size one stretch.
    pub mask: Option<Tensor<B, 4, Bool>>,
    /// A term that is added to scores, `[b, h, q, k]`; dims of size one stretch.
    pub bias: Option<Tensor<B, 4>>,
    /// The factor of products; by default one over the root of the width.
    pub scale: Option<f64>,
    /// How many keys a query sees at most, up to its own position.
    pub window: Option<usize>,
    /// The share of weights that are zeros while gradients are tracked, the others being larger for it. On a mesh they
    /// are the same however it is split. A backend that does not [drop](AttentionBackend::DROPS) computes all weights.
    pub dropout: f64,
}

impl<B: Backend> Default for AttentionOptions<B> {
    fn default() -> Self {
        Self {
            causal: false,
            mask: None,
            bias: None,
            scale: None,
            window: None,
            dropout: 0.0,
        }
    }
}

impl<B: Backend> AttentionOptions<B> {
    /// Returns the options of a query that sees the keys up to its own position.
    pub fn causal() -> Self {
        Self {
            causal: true,
            ..Self::default()
        }
    }

    /// Hides keys.
    pub fn mask(self, mask: Tensor<B, 4, Bool>) -> Self {
        Self {
            mask: Some(mask),
            ..self
        }
    }

    /// Adds to scores.
    pub fn bias(self, bias: Tensor<B, 4>) -> Self {
        Self {
            bias: Some(bias),
            ..self
        }
    }

    /// Sets what products are multiplied with.
    pub fn scale(self, scale: f64) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }

    /// Hides the keys that lie further back.
    ///
    /// # Panics
    /// If it is zero.
    pub fn window(self, window: usize) -> Self {
        assert!(
            window > 0,
            "a query sees at least its own key: a window of 0 hides all"
        );
        Self {
            window: Some(window),
            ..self
        }
    }

    /// Sets the share of weights that are dropped.
    ///
    /// # Panics
    /// If it is not at least zero and less than one.
    pub fn dropout(self, dropout: f64) -> Self {
        assert!(
            (0.0..1.0).contains(&dropout),
            "dropout is at least 0 and less than 1, not {dropout}"
        );
        Self { dropout, ..self }
    }
}

/// A backend that attends in one operation.
///
/// [`Flex`](burn_flex::Flex) has kernels, [`Dist`](crate::Dist) runs those of its inner backend on what each rank holds,
/// `Autodiff` brings the gradient. Another backend is one by `impl AttentionBackend for MyBackend {}`: it then composes
/// blocks of keys of its own operations.
///
/// # Source
/// Dao, "FlashAttention-2" (arXiv:2307.08691), section 3.1.
pub trait AttentionBackend: Backend {
    /// True if it drops weights as [`Scores::dropout`] says. On other backends [`attention`] is composed of operations
    /// where weights are dropped, in memory quadratic in the sequence.
    const DROPS: bool = false;

    /// Attends.
    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self> {
        blocks::forward(inputs, scores)
    }

    /// Returns the gradients of the inputs, of that of the result; that of the bias if `with_bias`.
    fn attention_backward(
        inputs: AttentionInputs<Self>,
        made: AttentionMade<Self>,
        gradient: FloatTensor<Self>,
        scores: Scores,
        with_bias: bool,
    ) -> AttentionGradients<Self> {
        blocks::backward(inputs, made, gradient, scores, with_bias)
    }
}

#[cfg(feature = "wgpu")]
impl AttentionBackend for crate::backend::Wgpu {}
#[cfg(feature = "cuda")]
impl AttentionBackend for crate::backend::Cuda {}

/// Scaled dot-product attention: `softmax(scale q k^T + bias) v`, where hidden scores are -infinity. A query that sees no
/// key gives zeros.
///
/// In one operation, forward and backward, with memory linear in the sequence. On a mesh, batch, heads, queries and keys
/// may be split.
///
/// # Shapes
/// `q` is `[b, h, q, e]`, `k` is `[b, g, k, e]`, `v` is `[b, g, k, v]`, and the result `[b, h, q, v]`: heads `h` are a
/// multiple of `g`, and as many in a row share a head of keys and values (grouped queries, arXiv:2305.13245).
///
/// # Communication
/// None, while each rank has the keys and values of its batch and heads. Where keys and values are split along the
/// sequence, as by a context axis (`cp`), they are gathered, and their gradients scattered, or both go round a ring: as
/// [`ContextParallel`](crate::ContextParallel) says.
///
/// # Panics
/// If shapes do not fit.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_dist::nn::{AttentionOptions, attention};
/// use burn_dist::{DeviceMesh, Dist};
///
/// let mesh = DeviceMesh::parse("dp=2")?;
/// let random = |shape: [usize; 4]| {
///     Tensor::<Dist<Flex>, 4>::random(shape, Distribution::Default, &mesh.device())
/// };
/// let (q, k, v) = (random([2, 8, 16, 4]), random([2, 2, 16, 4]), random([2, 2, 16, 4]));
/// let out = attention(q, k, v, AttentionOptions::causal());
/// assert_eq!(out.dims(), [2, 8, 16, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attention<B: AttentionBackend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: AttentionOptions<B>,
) -> Tensor<B, 4> {
    let [batch, heads, queries, width] = q.dims();
    let groups = k.dims()[1];
    assert!(
        groups > 0 && heads.is_multiple_of(groups),
        "{heads} heads of queries are no multiple of {groups} heads of keys"
    );
    let q = q.reshape([batch, groups, heads / groups, queries, width]);
    let out = grouped_attention(q, k, v, options);
    let value_width = out.dims()[4];
    out.reshape([batch, heads, queries, value_width])
}

/// [`attention`] of queries whose heads are in groups already, which spares a copy where they lie in another order.
///
/// # Shapes
/// `q` is `[b, g, n, q, e]`, `k` is `[b, g, k, e]`, `v` is `[b, g, k, v]`, and the result `[b, g, n, q, v]`. Masks and
/// biases have `h = g n` heads.
///
/// # Panics
/// If shapes do not fit.
pub fn grouped_attention<B: AttentionBackend>(
    q: Tensor<B, 5>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    options: AttentionOptions<B>,
) -> Tensor<B, 5> {
    let [batch, groups, group, queries, width] = q.dims();
    let [.., keys, value_width] = v.dims();
    assert_eq!(
        k.dims(),
        [batch, groups, keys, width],
        "keys for queries {:?}",
        q.dims()
    );
    assert_eq!(
        v.dims(),
        [batch, groups, keys, value_width],
        "values for queries {:?}",
        q.dims()
    );
    let pairs = [batch, groups * group, queries, keys];
    let in_groups = |what: &str, dims: [usize; 4]| {
        let fits = dims
            .iter()
            .zip(pairs)
            .all(|(dim, size)| *dim == 1 || *dim == size);
        assert!(
            fits,
            "a {what} of shape {dims:?} does not stretch to {pairs:?}"
        );
        let [groups, group] = if dims[1] == 1 {
            [1, 1]
        } else {
            [groups, group]
        };
        [dims[0], groups, group, dims[2], dims[3]]
    };
    let mask = options.mask.map(|mask| {
        let dims = in_groups("mask", mask.dims());
        mask.reshape(dims)
    });
    let bias = options.bias.map(|bias| {
        let dims = in_groups("bias", bias.dims());
        bias.reshape(dims)
    });
    let scores = Scores {
        scale: options.scale.unwrap_or_else(|| (width as f64).powf(-0.5)),
        causal: options.causal,
        window: options.window,
        offset: keys as isize - queries as isize,
        step: 1,
        dropout: None,
    };
    let drops = options.dropout > 0.0 && B::ad_enabled(&q.device());
    if drops && !B::DROPS {
        return dropped(q, k, v, mask, bias, scores, options.dropout);
    }
    let scores = Scores {
        dropout: drops.then(|| Dropped {
            share: options.dropout,
            origin: Origin::whole(group),
        }),
        ..scores
    };
    let seed = drops.then(|| {
        let words = Distribution::Uniform(0.0, f64::from(i32::MAX));
        Tensor::<B, 1, Int>::random([2], words, &q.device())
    });
    let float = |tensor: Tensor<B, 4>| tensor.into_primitive().tensor();
    let inputs = AttentionInputs {
        q: q.into_primitive().tensor(),
        k: float(k),
        v: float(v),
        mask: mask.map(Tensor::into_primitive),
        bias: bias.map(|bias| bias.into_primitive().tensor()),
        seed: seed.map(Tensor::into_primitive),
    };
    let made = B::attention_forward(inputs, scores);
    Tensor::from_primitive(TensorPrimitive::Float(made.out))
}

/// With weights at hand, some of which are dropped.
fn dropped<B: Backend>(
    q: Tensor<B, 5>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    mask: Option<Tensor<B, 5, Bool>>,
    bias: Option<Tensor<B, 5>>,
    scores: Scores,
    dropout: f64,
) -> Tensor<B, 5> {
    let [_, _, _, queries, _] = q.dims();
    let keys = k.dims()[2];
    let k = k.unsqueeze_dim::<5>(2).swap_dims(3, 4);
    let mut scored = (q * scores.scale).matmul(k);
    if let Some(bias) = bias {
        scored = scored + bias;
    }
    let hidden = blocks::hidden(scores, queries, 0..keys, &scored.device());
    let masks = mask.into_iter().chain(hidden);
    // Rows without a visible key are NaN in a softmax, and zeros here.
    let least = f64::from(f32::MIN);
    let mut seen: Option<Tensor<B, 5>> = None;
    for mask in masks {
        seen = Some(match seen {
            Some(seen) => seen * mask.clone().bool_not().float(),
            None => mask.clone().bool_not().float(),
        });
        scored = scored.mask_fill(mask, least);
    }
    let mut weights = softmax(scored, 4);
    if let Some(seen) = seen {
        weights = weights * seen;
    }
    let kept = weights.random_like(Distribution::Bernoulli(1.0 - dropout));
    let weights = weights * kept * (1.0 - dropout).recip();
    weights.matmul(v.unsqueeze_dim(2))
}

#[cfg(test)]
mod tests;
