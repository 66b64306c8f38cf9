//! The values: factors, dims, partial axes, layouts.

use burn_dist_mesh::{AxisIndex, ReduceOp};
use serde::{Deserialize, Serialize};

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

    /// Creates a dim that every rank holds whole.
    pub fn whole(size: usize) -> Self {
        Self::single(Factor::whole(size))
    }

    /// Returns the global size: the product of the factors.
    pub fn size(&self) -> usize {
        self.factors.iter().map(|factor| factor.size).product()
    }

    /// Returns the sizes of the factors.
    pub fn sizes(&self) -> Vec<usize> {
        self.factors.iter().map(|factor| factor.size).collect()
    }

    /// Returns the axes that split the dim, factor by factor.
    pub fn axes(&self) -> impl Iterator<Item = AxisIndex> + '_ {
        self.factors.iter().flat_map(|f| f.axes.iter().copied())
    }

    /// Returns whether every rank holds the whole dim.
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
/// use burn_dist_layout::Layout;
/// use burn_dist_mesh::{MeshShape, Rank, ReduceOp};
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
    /// Axes in `dims` over which the tensor merely rests (FSDP); any use but an elementwise one, or one in the update
    /// of a parameter, gathers them first.
    pub at_rest: Vec<AxisIndex>,
}
