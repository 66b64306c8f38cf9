//! The values: factors, dims, partial axes, layouts.

use crate::mesh::AxisIndex;
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

    /// Whether equal terms reduce to just that term, bit for bit.
    ///
    /// A value becomes terms of such a reduction by being repeated. Of a sum or a product, one rank keeps the value and
    /// the others hold the identity.
    pub fn is_idempotent(self) -> bool {
        matches!(self, ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max)
    }

    /// Whether reducing over one axis by `self` and over another by `other` gives the same value in either order.
    ///
    /// Only then may one value be partial by both.
    pub fn commutes_with(self, other: ReduceOp) -> bool {
        let linear = |op| matches!(op, ReduceOp::Sum | ReduceOp::Mean);
        self == other || (linear(self) && linear(other))
    }
}

/// A factor of a tensor dim: `size` elements, split over `axes` (major to minor).
///
/// The split is nested: the first axis cuts `size` into chunks of `ceil(size / k)`, the next one cuts each chunk, and
/// so on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Factor {
    /// Global number of elements.
    pub size: usize,
    /// The mesh axes that split it, major to minor.
    pub axes: Vec<AxisIndex>,
}

impl Factor {
    /// Creates a factor that every rank holds whole.
    pub fn whole(size: usize) -> Self {
        Self {
            size,
            axes: Vec::new(),
        }
    }
}

/// One tensor dim as a product of factors, major to minor; an empty list is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DimLayout {
    /// The factors, major to minor.
    pub factors: Vec<Factor>,
}

impl DimLayout {
    /// Creates a dim of one factor.
    pub fn single(factor: Factor) -> Self {
        Self {
            factors: vec![factor],
        }
    }

    /// Returns the global size: the product of the factors.
    pub fn size(&self) -> usize {
        self.factors.iter().map(|factor| factor.size).product()
    }

    /// Returns the axes that split the dim, factor by factor.
    pub fn axes(&self) -> impl Iterator<Item = AxisIndex> + '_ {
        self.factors.iter().flat_map(|f| f.axes.iter().copied())
    }

    /// Whether every rank holds the whole dim.
    pub fn is_whole(&self) -> bool {
        self.factors.iter().all(|factor| factor.axes.is_empty())
    }
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
/// Invariants: every axis appears at most once over all factors and partials; `partial` is sorted by axis; `at_rest` is
/// a sorted subset of the axes in `dims`; adjacent factors of a dim that both have no axes are merged; axes of size 1
/// never appear.
///
/// The text form lists the dims: `-` is whole on every rank, `{tp, fsdp*}` is split over `tp` and then `fsdp`, where it
/// merely rests, and `(4 . 8{tp})` is a dim of 4 × 8 elements whose minor factor is split.
///
/// ```
/// use burn_dist::layout::Layout;
/// use burn_dist::mesh::{MeshShape, Rank};
/// let mesh = MeshShape::parse("fsdp=2,tp=2")?;
/// let layout = Layout::parse("[{tp, fsdp*}, -]", &mesh, Some(&[7, 3]))?;
/// assert_eq!(layout.local_shape(&mesh, Rank(0)), [2, 3]);
/// assert_eq!(layout.local_shape(&mesh, Rank(3)), [1, 3]); // 7 over tp -> 4 + 3; the 3 over fsdp -> 2 + 1
/// assert_eq!(layout.gathered().display(&mesh).to_string(), "[{tp}, -]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// One entry per tensor dim.
    pub dims: Vec<DimLayout>,
    /// Axes over which the value is a sum (min, max, ...) of its parts.
    pub partial: Vec<Partial>,
    /// Axes in `dims` over which the tensor merely rests (FSDP); any use but an elementwise one gathers them first.
    pub at_rest: Vec<AxisIndex>,
}
