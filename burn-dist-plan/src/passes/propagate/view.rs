//! All that the choice of a split looks at, as data: equal views are split alike, so each is split once.

use std::sync::Arc;

use crate::ir::flops::Flops;
use crate::layout::Layout;
use crate::mesh::{AxisIndex, DType};
use crate::policy::{Accumulation, ContextParallel};
use crate::rule::OpRule;

/// An operand, as the choice sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    pub own: Option<Arc<Layout>>,
    /// The axes that the style of a parameter splits it over, if it is one or a view of one.
    pub pinned: Vec<AxisIndex>,
}

/// The result of an operation, as the choice sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

/// What is known about an operation beyond its rule, operands and results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Hints {
    /// An input that must have a layout, because the module asks for it.
    pub forced: Option<(usize, Layout)>,
    /// The layout that the result is wanted in.
    pub mirror: Option<Layout>,
    /// Where the result rests: unless it stays partial, it is made there.
    pub home: Option<Arc<Layout>>,
    /// True if what is at rest may stay so.
    pub on_pieces: bool,
    /// The layout of the result where the operands decide nothing.
    pub batch: Option<Layout>,
    /// Whether the rows of the result are its inputs, whose own layouts then say nothing.
    pub joins_rows: bool,
    /// The layouts that a reshape may start from.
    pub sources: Vec<Layout>,
    /// The shape that it leads to.
    pub shape: Vec<usize>,
    /// Floating-point operations of the whole.
    pub flops: Flops,
}

/// An operation, as the choice sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpView {
    pub rule: Arc<OpRule>,
    pub inputs: Vec<OperandView>,
    pub result: ResultView,
    pub hints: Hints,
}
