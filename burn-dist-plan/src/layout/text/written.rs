//! Layouts as they are written.

use burn_dist_mesh::ReduceOp;

/// The layout of an activation as it is written, before a mesh and a tensor are at hand: axes by name, sizes where they
/// are given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutText {
    pub(super) text: String,
    pub(super) dims: Vec<DimText>,
    /// The column of the `]`.
    pub(super) end: usize,
    pub(super) partial: Vec<PartialText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DimText {
    pub(super) column: usize,
    /// One, or a product.
    pub(super) factors: Vec<FactorText>,
}

/// `-`, if neither a size nor axes are given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FactorText {
    pub(super) column: usize,
    pub(super) size: Option<usize>,
    pub(super) axes: Vec<AxisText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartialText {
    pub(super) op: ReduceOp,
    pub(super) axes: Vec<AxisText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AxisText {
    pub(super) column: usize,
    pub(super) name: String,
    pub(super) rests: bool,
}

pub(super) const UNSIZED: &str =
    "the size is not known here: write it before the axes, as in `8{tp}`";
