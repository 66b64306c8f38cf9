//! Mixed precision: a window with 16-bit types where its units ask for them.

mod rewrite;
#[cfg(test)]
mod tests;

pub(crate) use rewrite::{Precise, precise};

use crate::mesh::DType;
use crate::policy::Float;

/// Returns the element type that a policy names.
pub(crate) fn dtype(float: Float) -> DType {
    match float {
        Float::F32 => DType::F32,
        Float::F16 => DType::F16,
        Float::BF16 => DType::BF16,
    }
}
