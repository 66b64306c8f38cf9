//! Fourier transforms: the transformed dim stays whole.

use super::OpRule;
use super::builder::{Name, RuleBuilder, Tensors, dims_but};

/// `rfft(signal)` gives real and imaginary parts.
pub(super) fn rfft(tensors: &Tensors, dim: usize) -> OpRule {
    named(tensors, dim).linear().build()
}

/// `irfft(real, imaginary)`.
pub(super) fn irfft(tensors: &Tensors, dim: usize) -> OpRule {
    named(tensors, dim).joint_linear(&[0, 1]).build()
}

fn named(tensors: &Tensors, dim: usize) -> RuleBuilder {
    let names = |side: &[&burn_ir::TensorIr]| {
        let tensors = side.iter();
        tensors.map(|t| dims_but(t, dim, Name::Whole)).collect()
    };
    RuleBuilder::named(tensors, names(&tensors.inputs), names(&tensors.outputs))
}
