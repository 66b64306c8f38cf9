//! Moves of tensors with gradients.

use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn_core::backend::Backend;
use burn_core::backend::tensor::FloatTensor;

use crate::bridge::Tracked;
use crate::layout::Layout;
use crate::record;

/// The gradient of a move has the same global value; where it lies is the planner's business.
#[derive(Debug)]
struct Redistribute;

impl<B: Backend> Backward<B, 1> for Redistribute {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| grad);
    }
}

/// Records a move of a tensor to `target`, and of its gradient back.
pub(super) fn redistribute<C: CheckpointStrategy>(
    tensor: FloatTensor<Tracked>,
    target: &Layout,
) -> FloatTensor<Tracked> {
    let prepared = Redistribute
        .prepare::<C>([tensor.node()])
        .compute_bound()
        .stateful();
    let moved = record::redistribute(tensor.into_primitive(), target);
    match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((), moved),
        OpsKind::UnTracked(prepared) => prepared.finish(moved),
    }
}
