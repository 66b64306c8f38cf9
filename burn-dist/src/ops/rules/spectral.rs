//! Fourier transforms: the transformed dim stays whole.

use super::OpRule;
use super::tensors::Tensors;
use burn_dist_plan::rule::{self, Name, RuleBuilder};

/// `rfft(signal)` gives real and imaginary parts.
pub(super) fn rfft(tensors: &Tensors, dim: usize) -> OpRule {
    named(tensors, dim).linear().build()
}

/// `irfft(real, imaginary)`.
pub(super) fn irfft(tensors: &Tensors, dim: usize) -> OpRule {
    named(tensors, dim).joint_linear(&[0, 1]).build()
}

fn named(tensors: &Tensors, dim: usize) -> RuleBuilder {
    let names = |side: &[&[usize]]| {
        let shapes = side.iter();
        shapes
            .map(|shape| rule::dims_but(shape.len(), dim, Name::Whole))
            .collect()
    };
    RuleBuilder::named(tensors, names(&tensors.inputs), names(&tensors.outputs))
}
