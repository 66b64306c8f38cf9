//! One step of a redistribution.

use crate::layout::Layout;
use burn_dist_mesh::collective::Kind;
use burn_dist_mesh::{AxisIndex, ReduceOp};
use serde::{Deserialize, Serialize};

/// The kind of a step. Dims and factors are those of the step's layouts, which have the same factors except around
/// [`StepKind::Refactor`].
///
/// To execute a step, view the local block with every factor as a dim of its own, in order; the position named by (dim,
/// factor) is where pieces are joined and cut. Groups are [`MeshShape::group_of`] the axes in the order listed, so
/// pieces join in group order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StepKind {
    /// Joins the members' pieces along a factor. `axes` are the minor-most axes of that factor.
    AllGather {
        /// The axes gathered, major to minor.
        axes: Vec<AxisIndex>,
        /// The tensor dim.
        dim: usize,
        /// The factor of that dim.
        factor: usize,
    },
    /// Reduces a value partial over `axes` and leaves each member its chunk; the axes become the minor-most ones of the
    /// factor.
    ReduceScatter {
        /// The axes reduced over, major to minor as they split the factor.
        axes: Vec<AxisIndex>,
        /// How the terms combine.
        op: ReduceOp,
        /// The tensor dim.
        dim: usize,
        /// The factor of that dim.
        factor: usize,
    },
    /// Reduces a value partial over `axes` on every member.
    AllReduce {
        /// The axes reduced over.
        axes: Vec<AxisIndex>,
        /// How the terms combine.
        op: ReduceOp,
    },
    /// Moves the minor-most axes of one factor to the minor-most place of another one, in their order.
    AllToAll {
        /// The axes, major to minor.
        axes: Vec<AxisIndex>,
        /// (dim, factor) that becomes less split.
        from: (usize, usize),
        /// (dim, factor) that becomes more split.
        to: (usize, usize),
    },
    /// Keeps the own chunk of a factor; the axes become its minor-most ones. No communication.
    Slice {
        /// The axes, major to minor.
        axes: Vec<AxisIndex>,
        /// The tensor dim.
        dim: usize,
        /// The factor of that dim.
        factor: usize,
    },
    /// Makes a value that the ranks along `axis` repeat into parts of a reduction. No communication.
    ///
    /// For [`ReduceOp::Sum`] and [`ReduceOp::Prod`] the first member keeps the value and the others take the identity:
    /// -0.0 (0 of integers) and 1. For the other operations equal parts already reduce to the value
    /// ([`ReduceOp::is_idempotent`]), so nobody does anything.
    ToPartial {
        /// The axis.
        axis: AxisIndex,
        /// How the parts combine.
        op: ReduceOp,
    },
    /// Describes the same local blocks by other factors, as in `[12{tp}]` and `[(4{tp} . 3)]`, or by other axes at
    /// rest. Only the local shape may change, and not the order of elements. No communication.
    Refactor,
}

/// One step of a redistribution: a collective or a local operation between two layouts of the same global shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Step {
    /// The kind of what is done.
    pub kind: StepKind,
    /// The layout before.
    pub from: Layout,
    /// The layout after.
    pub to: Layout,
}

impl StepKind {
    /// Returns the kind of the collective that it is, or `None` for a local step.
    pub fn collective(&self) -> Option<Kind> {
        match self {
            StepKind::AllGather { .. } => Some(Kind::AllGather),
            StepKind::ReduceScatter { .. } => Some(Kind::ReduceScatter),
            StepKind::AllReduce { .. } => Some(Kind::AllReduce),
            StepKind::AllToAll { .. } => Some(Kind::AllToAll),
            StepKind::Slice { .. } | StepKind::ToPartial { .. } | StepKind::Refactor => None,
        }
    }

    /// Returns the name of the step, local ones included.
    pub fn name(&self) -> &'static str {
        match self {
            StepKind::Slice { .. } => "slice",
            StepKind::ToPartial { .. } => "to_partial",
            StepKind::Refactor => "refactor",
            _ => self.collective().map_or("nothing", Kind::name),
        }
    }

    /// Returns how terms are reduced, if any are.
    pub fn reduce_op(&self) -> Option<ReduceOp> {
        match self {
            Self::ReduceScatter { op, .. } | Self::AllReduce { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// Returns the axes along which the step works, in group order.
    pub fn axes(&self) -> &[AxisIndex] {
        match self {
            StepKind::AllGather { axes, .. }
            | StepKind::ReduceScatter { axes, .. }
            | StepKind::AllReduce { axes, .. }
            | StepKind::AllToAll { axes, .. }
            | StepKind::Slice { axes, .. } => axes,
            StepKind::ToPartial { axis, .. } => std::slice::from_ref(axis),
            StepKind::Refactor => &[],
        }
    }

    /// Returns the layout after this step. Axes at rest are dropped from what they split; none are added.
    pub(super) fn apply(&self, from: &Layout) -> Layout {
        let mut to = from.clone();
        match self {
            StepKind::AllGather { axes, dim, factor } => to.pop_axes(*dim, *factor, axes),
            StepKind::ReduceScatter {
                axes, dim, factor, ..
            } => {
                to.partial.retain(|partial| !axes.contains(&partial.axis));
                to.push_axes(*dim, *factor, axes);
            }
            StepKind::AllReduce { axes, .. } => {
                to.partial.retain(|partial| !axes.contains(&partial.axis));
            }
            StepKind::AllToAll {
                axes,
                from: source,
                to: target,
            } => {
                to.pop_axes(source.0, source.1, axes);
                to.push_axes(target.0, target.1, axes);
            }
            StepKind::Slice { axes, dim, factor } => to.push_axes(*dim, *factor, axes),
            StepKind::ToPartial { axis, op } => to = to.with_partial_untidied(*axis, *op),
            StepKind::Refactor => {}
        }
        to
    }
}

impl Layout {
    fn push_axes(&mut self, dim: usize, factor: usize, axes: &[AxisIndex]) {
        self.dims[dim].factors[factor].axes.extend(axes);
    }

    fn pop_axes(&mut self, dim: usize, factor: usize, axes: &[AxisIndex]) {
        let list = &mut self.dims[dim].factors[factor].axes;
        assert!(
            list.ends_with(axes),
            "only the minor-most axes of a factor can leave it"
        );
        list.truncate(list.len() - axes.len());
        self.at_rest.retain(|axis| !axes.contains(axis));
    }

    /// Factors are left as they are, since the steps around this one count on them.
    fn with_partial_untidied(mut self, axis: AxisIndex, op: ReduceOp) -> Layout {
        self.partial.push(crate::layout::Partial { axis, op });
        self.partial.sort();
        self
    }
}
