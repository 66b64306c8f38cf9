//! Pools, interpolation and sampling: per sample and channel; space stays whole.

use super::OpRule;
use super::tensors::Tensors;
use burn_dist_plan::rule::RuleBuilder;

const PER_CHANNEL: &str = "b c *";

/// Sampling that weighs elements by their place alone: average pools, interpolation.
pub(super) fn linear(tensors: &Tensors) -> OpRule {
    RuleBuilder::uniform(tensors, PER_CHANNEL).linear().build()
}

/// Max pools, with or without indices (which are places in one channel).
pub(super) fn max(tensors: &Tensors) -> OpRule {
    RuleBuilder::uniform(tensors, PER_CHANNEL).build()
}

/// Backwards of all of them: of `x`, the first input, only the shape is read.
pub(super) fn backward(tensors: &Tensors) -> OpRule {
    RuleBuilder::uniform(tensors, PER_CHANNEL)
        .shape_only(0)
        .build()
}

/// `grid_sample_2d(tensor, grid)`: every point of the grid is sampled alone.
pub(super) fn grid_sample(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "b c *, b y x - -> b c y x")
        .linear()
        .build()
}
