//! Connectionist temporal classification: every sequence of the batch alone.

use super::OpRule;
use super::tensors::Tensors;
use burn_dist_plan::rule::RuleBuilder;

/// `(log_probs[t, b, c], targets[b, s], input_lengths[b], target_lengths[b])`.
pub(super) fn loss(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "- b -, b -, b, b -> b").build()
}

/// As [`loss`], and the gradient of the loss per sequence.
pub(super) fn backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "- b -, b -, b, b, b -> - b -").build()
}
