//! Who holds which part of a tensor, as plain data.

use crate::mesh::AxisIndex;
use serde::{Deserialize, Serialize};

/// How the parts of a partial value combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Elementwise sum.
    Sum,
    /// Elementwise mean: the sum divided by the number of members of the group.
    Mean,
    /// Elementwise minimum.
    Min,
    /// Elementwise maximum.
    Max,
    /// Elementwise product.
    Prod,
}

/// A factor of a tensor dim: `size` elements, split over `axes` (major to minor).
///
/// The split is nested: the first axis cuts `size` into chunks of `ceil(size / k)`, the next one cuts each chunk, and so on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Factor {
    /// Global number of elements.
    pub size: usize,
    /// The mesh axes that split it, major to minor.
    pub axes: Vec<AxisIndex>,
}

/// One tensor dim as a product of factors, major to minor; an empty list is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DimLayout {
    /// The factors, major to minor.
    pub factors: Vec<Factor>,
}

/// A mesh axis over which every rank holds one term of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Partial {
    /// The axis.
    pub axis: AxisIndex,
    /// How the terms combine.
    pub op: ReduceOp,
}

/// Where the elements of a tensor are: an axis list per dim (or per factor of a dim), partial axes, axes at rest.
///
/// Invariants: every axis appears at most once over all factors and partials; `partial` is sorted by axis; `at_rest` is a sorted subset of
/// the axes in `dims`; adjacent factors of a dim that both have no axes are merged; axes of size 1 never appear.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// One entry per tensor dim.
    pub dims: Vec<DimLayout>,
    /// Axes over which the value is a sum (min, max, ...) of its parts.
    pub partial: Vec<Partial>,
    /// Axes in `dims` over which the tensor merely rests (FSDP); any use but an elementwise one gathers them first.
    pub at_rest: Vec<AxisIndex>,
}
