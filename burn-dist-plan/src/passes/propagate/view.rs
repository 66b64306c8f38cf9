//! Everything that the choice of a split looks at, as data.

use std::sync::Arc;

use super::operands::Hints;
use crate::layout::Layout;
use crate::mesh::{AxisIndex, DType};
use crate::policy::{Accumulation, ContextParallel};

/// An operand, as the choice sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperandView {
    pub dtype: DType,
    /// The layouts in which it exists.
    pub versions: Vec<Arc<Layout>>,
    /// True if any part of it can be had without communication.
    pub is_free: bool,
    /// True if other operands have to follow it.
    pub decides: bool,
    /// True if nothing else needs it.
    pub single_use: bool,
    /// The layout that it takes once its terms are added up, if all its versions have terms.
    pub resolved: Option<Layout>,
    /// The layout that it takes if nothing else decides, if it is not decided.
    pub own: Option<Layout>,
    /// The axes that the style of a parameter splits it over, if it is one or a view of one.
    pub pinned: Vec<AxisIndex>,
}

/// The result of an operation, as the choice sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ResultView {
    /// The element type of each output.
    pub dtypes: Vec<DType>,
    /// The layout of a value that it is tied to.
    pub tied: Option<Arc<Layout>>,
    /// True if the backward makes it.
    pub is_backward: bool,
    pub accumulation: Accumulation,
    pub context: ContextParallel,
}

/// An operation, as the choice sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpView {
    pub inputs: Vec<OperandView>,
    pub result: ResultView,
    pub hints: Hints,
}
