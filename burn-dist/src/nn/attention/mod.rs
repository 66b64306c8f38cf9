//! Attention as one operation, with its backward as another: memory linear in the sequence.

mod blocks;
mod flex;
mod gradient;
mod host;
mod in_burn;
mod mesh;
mod op;
mod ring;
mod types;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn_core::tensor::activation::softmax;
use burn_core::tensor::{Bool, Device, Distribution, GradientCheckpointingStrategy, Int, Tensor};
use burn_dist_kernels::attention::Origin;
use burn_flex::Flex;

use crate::Dist;
use crate::bridge::mesh_device;
use in_burn::InBurn;
use types::{AttentionBackend, AttentionInputs, Dropped, Scores};

/// Options of attention: masks, bias, scale, window and dropout.
#[derive(Clone, Debug)]
pub struct AttentionOptions {
    /// Hides keys behind a query's own position. With more keys than queries, the last query is at the last key.
    pub causal: bool,
    /// The keys that are hidden (true) from each query, `[b, h, q, k]`; dims of size one stretch.
    pub mask: Option<Tensor<4, Bool>>,
    /// A term that is added to scores, `[b, h, q, k]`; dims of size one stretch.
    pub bias: Option<Tensor<4>>,
    /// The factor of products; by default one over the root of the width.
    pub scale: Option<f64>,
    /// How many keys a query sees at most, up to its own position.
    pub window: Option<usize>,
    /// The share of weights that are zeros while gradients are tracked, the others being larger for it. On a mesh they
    /// are the same however it is split. Beside meshes and Flex all weights are computed for it.
    pub dropout: f64,
}

impl Default for AttentionOptions {
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

impl AttentionOptions {
    /// Returns the options of a query that sees the keys up to its own position.
    pub fn causal() -> Self {
        Self {
            causal: true,
            ..Self::default()
        }
    }

    /// Hides keys.
    pub fn mask(self, mask: Tensor<4, Bool>) -> Self {
        Self {
            mask: Some(mask),
            ..self
        }
    }

    /// Adds to scores.
    pub fn bias(self, bias: Tensor<4>) -> Self {
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
/// use burn::tensor::{Distribution, Tensor};
/// use burn_dist::nn::{AttentionOptions, attention};
/// use burn_dist::DeviceMesh;
///
/// let mesh = DeviceMesh::parse("dp=2")?;
/// let random = |shape: [usize; 4]| {
///     Tensor::<4>::random(shape, Distribution::Default, &mesh.device())
/// };
/// let (q, k, v) = (random([2, 8, 16, 4]), random([2, 2, 16, 4]), random([2, 2, 16, 4]));
/// let out = attention(q, k, v, AttentionOptions::causal());
/// assert_eq!(out.dims(), [2, 8, 16, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, options: AttentionOptions) -> Tensor<4> {
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
pub fn grouped_attention(
    q: Tensor<5>,
    k: Tensor<4>,
    v: Tensor<4>,
    options: AttentionOptions,
) -> Tensor<5> {
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
    let drops = options.dropout > 0.0 && q.device().is_autodiff();
    let of_keys = |tensor: Tensor<4>| tensor.unsqueeze_dim::<5>(2);
    let Some(on) = Attends::on(&q.device()) else {
        return match drops {
            true => dropped(q, k, v, mask, bias, scores, options.dropout),
            false => {
                blocks::forward(blocks::Tensors::new(
                    [q, of_keys(k), of_keys(v)],
                    mask,
                    bias,
                    scores,
                ))
                .0
            }
        };
    };
    let scores = Scores {
        dropout: drops.then(|| Dropped {
            share: options.dropout,
            origin: Origin::whole(group),
        }),
        ..scores
    };
    let seed = drops.then(|| {
        let words = Distribution::Uniform(0.0, f64::from(i32::MAX));
        Tensor::<1, Int>::random([2], words, &q.device())
    });
    let inputs = Inputs {
        q,
        k,
        v,
        mask,
        bias,
        seed,
    };
    let strategy = inputs.strategy();
    match (on, strategy) {
        (Attends::Mesh, None) => attend::<Dist>(inputs, scores),
        (Attends::Mesh, Some(GradientCheckpointingStrategy::Disabled)) => {
            tracked::<Dist, NoCheckpointing>(inputs, scores)
        }
        (Attends::Mesh, Some(GradientCheckpointingStrategy::Balanced)) => {
            tracked::<Dist, BalancedCheckpointing>(inputs, scores)
        }
        (Attends::Flex, None) => attend::<Flex>(inputs, scores),
        (Attends::Flex, Some(GradientCheckpointingStrategy::Disabled)) => {
            tracked::<Flex, NoCheckpointing>(inputs, scores)
        }
        (Attends::Flex, Some(GradientCheckpointingStrategy::Balanced)) => {
            tracked::<Flex, BalancedCheckpointing>(inputs, scores)
        }
    }
}

/// Devices that attend in one operation.
enum Attends {
    Mesh,
    Flex,
}

impl Attends {
    fn on(device: &Device) -> Option<Self> {
        if let Some(device) = mesh_device(device) {
            return mesh::attends(device).then_some(Self::Mesh);
        }
        (*device == Device::flex()).then_some(Self::Flex)
    }
}

/// The inputs of attention, on one device.
struct Inputs {
    q: Tensor<5>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Option<Tensor<5, Bool>>,
    bias: Option<Tensor<5>>,
    seed: Option<Tensor<1, Int>>,
}

impl Inputs {
    /// Returns how gradients are found, if they are: an input without is a constant.
    fn strategy(&self) -> Option<GradientCheckpointingStrategy> {
        let of_bias = || self.bias.as_ref()?.gradient_checkpointing_strategy();
        let of_keys = || self.k.gradient_checkpointing_strategy();
        let of_values = || self.v.gradient_checkpointing_strategy();
        let strategy = self.q.gradient_checkpointing_strategy();
        strategy
            .or_else(of_keys)
            .or_else(of_values)
            .or_else(of_bias)
    }
}

/// Returns the inputs as a backend has them.
fn inputs_of<B: InBurn>(inputs: Inputs) -> AttentionInputs<B> {
    AttentionInputs {
        q: B::float(inputs.q),
        k: B::float(inputs.k),
        v: B::float(inputs.v),
        mask: inputs.mask.map(B::bool),
        bias: inputs.bias.map(B::float),
        seed: inputs.seed.map(B::int),
    }
}

fn attend<B: AttentionBackend + InBurn>(inputs: Inputs, scores: Scores) -> Tensor<5> {
    B::tensor(B::attention_forward(inputs_of(inputs), scores).out)
}

fn tracked<B: AttentionBackend, C: CheckpointStrategy>(inputs: Inputs, scores: Scores) -> Tensor<5>
where
    Autodiff<B, C>: InBurn,
{
    let inputs = inputs_of::<Autodiff<B, C>>(inputs);
    <Autodiff<B, C>>::tensor(gradient::forward(inputs, scores))
}

/// With weights at hand, some of which are dropped.
fn dropped(
    q: Tensor<5>,
    k: Tensor<4>,
    v: Tensor<4>,
    mask: Option<Tensor<5, Bool>>,
    bias: Option<Tensor<5>>,
    scores: Scores,
    dropout: f64,
) -> Tensor<5> {
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
    let mut seen: Option<Tensor<5>> = None;
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
