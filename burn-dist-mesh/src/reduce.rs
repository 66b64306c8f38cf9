//! How ranks combine what each of them has.

use serde::{Deserialize, Serialize};

/// How the parts of a partial value combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Elementwise sum.
    Sum,
    /// Elementwise mean: the sum divided by the number of members of the group; of equal terms, that term.
    Mean,
    /// Elementwise minimum.
    Min,
    /// Elementwise maximum.
    Max,
    /// Elementwise product.
    Prod,
}

impl ReduceOp {
    /// All operations.
    pub const ALL: [ReduceOp; 5] = [
        ReduceOp::Sum,
        ReduceOp::Mean,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Prod,
    ];

    /// Returns the name in the text form of layouts.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Prod => "prod",
        }
    }

    /// Returns whether equal terms reduce to just that term, bit for bit.
    ///
    /// A value becomes terms of such a reduction by being repeated. Of a sum or a product, one rank keeps the value and
    /// the others hold the identity.
    pub fn is_idempotent(self) -> bool {
        matches!(self, ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max)
    }

    /// Returns whether reducing over one axis by `self` and over another by `other` gives one value in either order.
    ///
    /// Only then may one value be partial by both.
    pub fn commutes_with(self, other: ReduceOp) -> bool {
        let linear = |op| matches!(op, ReduceOp::Sum | ReduceOp::Mean);
        self == other || (linear(self) && linear(other))
    }
}
