//! One step of a redistribution.

use crate::Layout;
use burn_dist_mesh::collective::Kind;
use burn_dist_mesh::{AxisIndex, ReduceOp};
use serde::{Deserialize, Serialize};

/// The kind of a step. Dims and factors are those of the step's layouts, which have the same factors except around
/// [`StepKind::Refactor`].
///
/// To execute a step, view the local block with every factor as a dim of its own, in order; the position named by (dim,
/// factor) is where pieces are joined and cut. Groups are [`MeshShape::group_of`](burn_dist_mesh::MeshShape::group_of)
/// the axes in the order listed, so pieces join in group order.
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

/// The effect of a step on blocks and layouts: the one place where kinds of steps differ, but for local ones.
#[derive(Clone, Copy, Debug)]
pub struct Effect<'a> {
    /// The collective that it is; `None` of a local step.
    pub collective: Option<Kind>,
    /// The axes along which it works, in group order.
    pub axes: &'a [AxisIndex],
    /// How the terms of the members are reduced, before anything is cut; nothing is partial over the axes then.
    pub reduces: Option<ReduceOp>,
    /// The (dim, factor) along which the pieces of the members are joined: the axes leave it.
    pub joins: Option<(usize, usize)>,
    /// The (dim, factor) of which a piece is cut for each member: the axes become its minor-most ones.
    pub cuts: Option<(usize, usize)>,
}

impl StepKind {
    /// Returns the effect of the step.
    pub fn effect(&self) -> Effect<'_> {
        let local = |axes| Effect {
            collective: None,
            axes,
            reduces: None,
            joins: None,
            cuts: None,
        };
        let call = |kind, axes| Effect {
            collective: Some(kind),
            ..local(axes)
        };
        match self {
            Self::AllGather { axes, dim, factor } => Effect {
                joins: Some((*dim, *factor)),
                ..call(Kind::AllGather, axes)
            },
            Self::ReduceScatter {
                axes,
                op,
                dim,
                factor,
            } => Effect {
                reduces: Some(*op),
                cuts: Some((*dim, *factor)),
                ..call(Kind::ReduceScatter, axes)
            },
            Self::AllReduce { axes, op } => Effect {
                reduces: Some(*op),
                ..call(Kind::AllReduce, axes)
            },
            Self::AllToAll { axes, from, to } => Effect {
                joins: Some(*from),
                cuts: Some(*to),
                ..call(Kind::AllToAll, axes)
            },
            Self::Slice { axes, dim, factor } => Effect {
                cuts: Some((*dim, *factor)),
                ..local(axes)
            },
            Self::ToPartial { axis, .. } => local(std::slice::from_ref(axis)),
            Self::Refactor => local(&[]),
        }
    }

    /// Returns the kind of the collective that it is, or `None` for a local step.
    pub fn collective(&self) -> Option<Kind> {
        self.effect().collective
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
        self.effect().reduces
    }

    /// Returns the axes along which the step works, in group order.
    pub fn axes(&self) -> &[AxisIndex] {
        self.effect().axes
    }

    /// Returns the layout after this step. Axes at rest are dropped from what they split; none are added.
    pub(super) fn apply(&self, from: &Layout) -> Layout {
        let mut to = from.clone();
        let effect = self.effect();
        if effect.reduces.is_some() {
            to.partial
                .retain(|partial| !effect.axes.contains(&partial.axis));
        }
        if let Some((dim, factor)) = effect.joins {
            to.pop_axes(dim, factor, effect.axes);
        }
        if let Some((dim, factor)) = effect.cuts {
            to.push_axes(dim, factor, effect.axes);
        }
        match self {
            StepKind::ToPartial { axis, op } => to.with_partial_untidied(*axis, *op),
            _ => to,
        }
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
        self.partial.push(crate::Partial { axis, op });
        self.partial.sort();
        self
    }
}
