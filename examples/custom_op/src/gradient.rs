//! The backward, for `Autodiff` around any backend that has the operation.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

use crate::Backend;

#[derive(Debug)]
struct BiasGeluGradient;

impl<B: Backend> Backward<B, 2> for BiasGeluGradient {
    type State = (NodeId, NodeId);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let [of_x, of_bias] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let (x, bias) = ops.state;
        let x: FloatTensor<B> = checkpointer.retrieve_node_output(x);
        let bias: FloatTensor<B> = checkpointer.retrieve_node_output(bias);
        let (to_x, to_bias) = B::bias_gelu_backward(x, bias, gradient);
        if let Some(node) = of_x {
            grads.register::<B>(node.id, to_x);
        }
        if let Some(node) = of_bias {
            grads.register::<B>(node.id, to_bias);
        }
    }
}

impl<B: Backend, C: CheckpointStrategy> Backend for Autodiff<B, C> {
    fn bias_gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = BiasGeluGradient
            .prepare::<C>([x.node(), bias.node()])
            .compute_bound()
            .stateful();
        match prepared {
            OpsKind::Tracked(mut prepared) => {
                let state = (prepared.checkpoint(&x), prepared.checkpoint(&bias));
                prepared.finish(
                    state,
                    B::bias_gelu(x.into_primitive(), bias.into_primitive()),
                )
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(B::bias_gelu(x.into_primitive(), bias.into_primitive()))
            }
        }
    }

    fn bias_gelu_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unimplemented_second_derivative()
    }
}

/// Only a backward calls it, and that runs below `Autodiff`.
fn unimplemented_second_derivative() -> ! {
    panic!("`bias_gelu` has no second derivative: its backward runs below `Autodiff`")
}
