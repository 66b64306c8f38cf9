//! The gradient, for `Autodiff` around any backend that attends.

use burn_autodiff::Autodiff;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, Shape, TensorMetadata};

use super::AttentionBackend;
use super::types::{AttentionInputs, AttentionMade, Scores};

/// The backward of attention: `N` is three, or four with a bias.
#[derive(Debug)]
struct AttentionGradient;

/// Tensors of the forward that the gradient needs.
#[derive(Clone, Debug)]
struct State<B: Backend, const N: usize> {
    inputs: [NodeId; N],
    untracked: Untracked<B>,
    made: AttentionMade<B>,
    scores: Scores,
}

/// Inputs that have no gradient.
#[derive(Clone, Debug)]
struct Untracked<B: Backend> {
    mask: Option<BoolTensor<B>>,
    seed: Option<IntTensor<B>>,
}

/// Queries, keys, values and perhaps a bias, in this order.
fn inputs_of<B: Backend>(
    tensors: impl IntoIterator<Item = FloatTensor<B>>,
    untracked: Untracked<B>,
) -> AttentionInputs<B> {
    let mut tensors = tensors.into_iter();
    let mut next = || tensors.next().expect("queries, keys and values");
    AttentionInputs {
        q: next(),
        k: next(),
        v: next(),
        mask: untracked.mask,
        bias: tensors.next(),
        seed: untracked.seed,
    }
}

impl<B: AttentionBackend, const N: usize> Backward<B, N> for AttentionGradient {
    type State = State<B, N>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let state = ops.state;
        let tensors = state
            .inputs
            .map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
        let inputs = inputs_of::<B>(tensors, state.untracked);
        let bias_shape = inputs.bias.as_ref().map(TensorMetadata::shape);
        let with_bias = ops.parents.get(3).is_some_and(Option::is_some);
        let made = B::attention_backward(inputs, state.made, gradient, state.scores, with_bias);
        let to_bias = made.bias.zip(bias_shape);
        let to_bias = to_bias.map(|(gradient, shape)| summed::<B>(gradient, &shape));
        let all = [Some(made.q), Some(made.k), Some(made.v), to_bias];
        for (parent, gradient) in ops.parents.into_iter().zip(all) {
            if let (Some(node), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// Sums over the dims that were stretched.
fn summed<B: Backend>(mut gradient: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    for dim in 0..shape.num_dims() {
        if shape[dim] == 1 && gradient.shape()[dim] != 1 {
            gradient = B::float_sum_dim(gradient, dim);
        }
    }
    gradient
}

/// Attends to inputs in the order of [`inputs_of`].
fn attend<B: AttentionBackend, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    untracked: Untracked<B>,
    scores: Scores,
) -> AttentionMade<Autodiff<B, C>> {
    let prepared = AttentionGradient
        .prepare::<C>(inputs.each_ref().map(|input| input.node.clone()))
        .compute_bound()
        .stateful();
    let primitives = inputs.iter().map(|input| input.primitive.clone());
    let made = B::attention_forward(inputs_of(primitives, untracked.clone()), scores);
    // Not through `AutodiffBackend`: with Burn's feature `distributed`, that asks more of `B`.
    let log_sum_exp = <FloatTensor<Autodiff<B, C>>>::new(made.log_sum_exp.clone());
    let out = match prepared {
        OpsKind::UnTracked(prepared) => prepared.finish(made.out),
        OpsKind::Tracked(mut prepared) => {
            let state = State {
                inputs: inputs.each_ref().map(|input| prepared.checkpoint(input)),
                untracked,
                made: made.clone(),
                scores,
            };
            prepared.finish(state, made.out)
        }
    };
    AttentionMade { out, log_sum_exp }
}

impl<B: AttentionBackend, C: CheckpointStrategy> AttentionBackend for Autodiff<B, C> {
    const DROPS: bool = B::DROPS;

    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self> {
        let AttentionInputs {
            q,
            k,
            v,
            mask,
            bias,
            seed,
        } = inputs;
        let untracked = Untracked { mask, seed };
        match bias {
            None => attend([q, k, v], untracked, scores),
            Some(bias) => attend([q, k, v, bias], untracked, scores),
        }
    }
}
