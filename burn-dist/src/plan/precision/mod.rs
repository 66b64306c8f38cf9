//! Mixed precision: a window with 16-bit types where its units ask for them.
//!
//! | file | idea |
//! | --- | --- |
//! | `class` | what each operation is computed in |
//! | `rewrite` | the window with its casts |

mod class;
mod rewrite;
#[cfg(test)]
mod tests;

pub(super) use rewrite::precise;

use burn_backend::DType;
use burn_dist_plan::policy::Float;

/// Returns Burn's name of a float type.
pub(crate) fn dtype(float: Float) -> DType {
    match float {
        Float::F32 => DType::F32,
        Float::F16 => DType::F16,
        Float::BF16 => DType::BF16,
    }
}
