//! Layouts as they are written.

use burn_dist_mesh::ReduceOp;

/// The layout of an activation as it is written, before a mesh and a tensor are at hand: axes by name, sizes where they
/// are written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutText {
    pub(super) text: String,
    pub(super) dims: Vec<DimText>,
    /// The column of the `]`.
    pub(super) end: usize,
    pub(super) partial: Vec<PartialText>,
}

/// A dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DimText {
    /// Where it starts.
    pub column: usize,
    /// One, or a product.
    pub factors: Vec<FactorText>,
}

/// A factor of a dim: `-`, if it names neither a size nor axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FactorText {
    /// Where it starts.
    pub column: usize,
    /// The size, where it is written.
    pub size: Option<usize>,
    /// The axes over which it is split.
    pub axes: Vec<AxisText>,
}

/// The axes along which every rank holds a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartialText {
    /// The operation that brings the terms together.
    pub op: ReduceOp,
    /// The axes.
    pub axes: Vec<AxisText>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AxisText {
    /// Where its name starts.
    pub column: usize,
    /// Its name.
    pub name: String,
    /// True if it has a star.
    pub rests: bool,
}

/// A [`LayoutText`] of an activation as constants: the form in which generated code holds one that was read before.
#[derive(Clone, Copy, Debug)]
pub struct LayoutParts<'a> {
    /// The text.
    pub text: &'a str,
    /// The column of the `]`.
    pub end: usize,
    /// Each dim: its column and its factors.
    pub dims: &'a [(usize, &'a [FactorParts<'a>])],
    /// Each operation with its axes.
    pub partial: &'a [(ReduceOp, &'a [AxisParts<'a>])],
}

/// The column, the size and the axes of a factor.
pub type FactorParts<'a> = (usize, Option<usize>, &'a [AxisParts<'a>]);

/// The column and the name of an axis.
pub type AxisParts<'a> = (usize, &'a str);

pub(super) const UNSIZED: &str =
    "the size is not known here: write it before the axes, as in `8{tp}`";
