//! The gradient, for `Autodiff` around any backend that attends.

use burn_autodiff::Autodiff;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::tensor::{BoolTensor, FloatTensor};
use burn_backend::{AutodiffBackend, Backend, Shape, TensorMetadata};

use super::{AttentionBackend, AttentionInputs, AttentionMade, Scores};

/// The backward of attention with `N` inputs that may have gradients: with a bias, four.
#[derive(Debug)]
struct AttentionGradient;

/// What it needs.
#[derive(Clone, Debug)]
struct State<B: Backend> {
    q: NodeId,
    k: NodeId,
    v: NodeId,
    mask: Option<BoolTensor<B>>,
    bias: Option<NodeId>,
    bias_shape: Option<Shape>,
    made: AttentionMade<B>,
    scores: Scores,
}

impl<B: AttentionBackend, const N: usize> Backward<B, N> for AttentionGradient {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let state = ops.state;
        let mut input = |node: NodeId| checkpointer.retrieve_node_output::<FloatTensor<B>>(node);
        let inputs = AttentionInputs {
            q: input(state.q),
            k: input(state.k),
            v: input(state.v),
            mask: state.mask,
            bias: state.bias.map(input),
        };
        let mut parents = ops.parents.into_iter();
        let [q, k, v, bias] = [0; 4].map(|_| parents.next().flatten());
        let made =
            B::attention_backward(inputs, state.made, gradient, state.scores, bias.is_some());
        let to_bias = made.bias.zip(state.bias_shape);
        let to_bias = to_bias.map(|(gradient, shape)| summed::<B>(gradient, &shape));
        let all = [
            (q, Some(made.q)),
            (k, Some(made.k)),
            (v, Some(made.v)),
            (bias, to_bias),
        ];
        for (parent, gradient) in all {
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

impl<B: AttentionBackend, C: CheckpointStrategy> AttentionBackend for Autodiff<B, C> {
    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self> {
        let (q, k, v) = (inputs.q, inputs.k, inputs.v);
        let nodes = [q.node.clone(), k.node.clone(), v.node.clone()];
        let primitives = |bias: Option<FloatTensor<B>>| AttentionInputs {
            q: q.primitive.clone(),
            k: k.primitive.clone(),
            v: v.primitive.clone(),
            mask: inputs.mask.clone(),
            bias,
        };
        match inputs.bias {
            None => {
                let prepared = AttentionGradient
                    .prepare::<C>(nodes)
                    .compute_bound()
                    .stateful();
                let made = B::attention_forward(primitives(None), scores);
                let out = match prepared {
                    OpsKind::UnTracked(prepared) => prepared.finish(made.out.clone()),
                    OpsKind::Tracked(mut prepared) => {
                        let [q, k, v] = [&q, &k, &v].map(|input| prepared.checkpoint(input));
                        let state = State {
                            q,
                            k,
                            v,
                            mask: inputs.mask.clone(),
                            bias: None,
                            bias_shape: None,
                            made: made.clone(),
                            scores,
                        };
                        prepared.finish(state, made.out.clone())
                    }
                };
                tracked(out, made)
            }
            Some(bias) => {
                let [of_q, of_k, of_v] = nodes;
                let nodes = [of_q, of_k, of_v, bias.node.clone()];
                let prepared = AttentionGradient
                    .prepare::<C>(nodes)
                    .compute_bound()
                    .stateful();
                let made = B::attention_forward(primitives(Some(bias.primitive.clone())), scores);
                let out = match prepared {
                    OpsKind::UnTracked(prepared) => prepared.finish(made.out.clone()),
                    OpsKind::Tracked(mut prepared) => {
                        let [q, k, v, of_bias] =
                            [&q, &k, &v, &bias].map(|input| prepared.checkpoint(input));
                        let state = State {
                            q,
                            k,
                            v,
                            mask: inputs.mask.clone(),
                            bias: Some(of_bias),
                            bias_shape: Some(bias.shape()),
                            made: made.clone(),
                            scores,
                        };
                        prepared.finish(state, made.out.clone())
                    }
                };
                tracked(out, made)
            }
        }
    }
}

/// The result with its place in the graph; statistics have none.
fn tracked<B: Backend, C: CheckpointStrategy>(
    out: FloatTensor<Autodiff<B, C>>,
    made: AttentionMade<B>,
) -> AttentionMade<Autodiff<B, C>> {
    AttentionMade {
        out,
        log_sum_exp: Autodiff::<B, C>::from_inner(made.log_sum_exp),
    }
}
