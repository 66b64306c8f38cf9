//! Connectionist temporal classification: every sequence of the batch alone.

use super::family::prelude::*;

family! {
    Ctc |cx, op| {
        /// `(log_probs[t, b, c], targets[b, s], input_lengths[b], target_lengths[b])`.
        CtcLoss(CtcLossOpIr) float = B::ctc_loss(
            cx.float(&op.log_probs),
            cx.int(&op.targets),
            cx.int(&op.input_lengths),
            cx.int(&op.target_lengths),
            op.blank,
        ),
        /// The loss, and its gradient per sequence.
        CtcLossBackward(CtcLossBackwardOpIr) float = {
            if !B::has_ctc_loss_backward() {
                return Err(ExecuteError::Unsupported {
                    op: "ctc_loss_backward".into(),
                    reason: "the backend has no kernel for it: differentiate the ops of the loss",
                });
            }
            B::ctc_loss_backward(
                cx.float(&op.log_probs),
                cx.int(&op.targets),
                cx.int(&op.input_lengths),
                cx.int(&op.target_lengths),
                cx.float(&op.grad_loss),
                op.blank,
            )
        },
    }
}

impl Operation for Ctc<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let notation = match self {
            Self::CtcLoss(_) => "- b -, b -, b, b -> b",
            Self::CtcLossBackward(_) => "- b -, b -, b, b, b -> - b -",
        };
        RuleBuilder::notation(shapes, notation).build()
    }

    fn makes(&self) -> bool {
        true
    }
}
