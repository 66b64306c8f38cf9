//! Operations on tensors without elements, as the part of a rank may be: what they make is known, and no kernel runs.
//!
//! Backends do not agree on kernels over nothing. A launch without threads is an error of CUDA's, which CubeCL 0.10
//! reports to whoever reads next, and the identities of reductions are left to whatever a kernel makes of them.
//!
//! Left out on purpose: quantized results, which are whole on every rank and which Burn makes from data alone; and
//! custom operations with results that have elements, since only their kernels know them.

use burn_ir::TensorIr;

/// Returns whether a tensor has elements.
#[inline]
pub(super) fn has_elements(tensor: &TensorIr) -> bool {
    !tensor.shape.as_slice().contains(&0)
}

/// The elements that an operation makes of inputs that have none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Nothing {
    /// Zeros: sums of no terms.
    Zeros,
    /// Ones: products of no factors.
    Ones,
    /// A number.
    Full(f64),
    /// The term of a sum that is left: input `input`, a bias, with a number for each index of dim `dim`.
    Bias { input: usize, dim: usize },
    /// Its first input: nothing is written into it.
    First,
    /// No value: the largest of no elements.
    Undefined,
}

/// An operation that makes something of nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OfNothing {
    /// The first of the inputs any of which leaves nothing to compute with, if it has no elements.
    pub first: usize,
    /// The result then.
    pub made: Nothing,
}

impl OfNothing {
    /// Returns what is made if any of the inputs from `first` on has no elements.
    pub(super) fn from(first: usize, made: Nothing) -> Option<Self> {
        Some(Self { first, made })
    }
}
