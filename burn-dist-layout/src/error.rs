//! Errors of layouts.

/// The reason why a layout, or a path between two, cannot be had.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A dim without factors.
    #[error("dim {dim} has no factors: a dim that nothing splits is one factor without axes")]
    EmptyDim {
        /// The dim.
        dim: usize,
    },
    /// An axis number that the mesh does not have.
    #[error(
        "the layout uses mesh axis {axis}, but the mesh `{mesh}` has only {num_axes} axes: build it for this mesh"
    )]
    UnknownAxis {
        /// The axis number.
        axis: u8,
        /// The mesh in text form.
        mesh: String,
        /// Number of axes of the mesh.
        num_axes: usize,
    },
    /// An axis that splits the model into stages.
    #[error(
        "no tensor is split over axis `{axis}`, which splits the model into stages: leave it out"
    )]
    PipelineAxis {
        /// The name of the axis.
        axis: String,
    },
    /// An axis used more than once.
    #[error(
        "axis `{axis}` is used twice: an axis splits at most one dim, or makes the value partial"
    )]
    AxisTwice {
        /// The name of the axis.
        axis: String,
    },
    /// An axis at rest that splits nothing.
    #[error(
        "axis `{axis}` is at rest but splits no dim: add it to a dim, or take it off the axes at rest"
    )]
    RestNotSharded {
        /// The name of the axis.
        axis: String,
    },
    /// A value partial by operations whose order would matter.
    #[error(
        "a value cannot be partial by {first} and {second} at once, because their order matters: resolve one of them \
         first"
    )]
    MixedPartial {
        /// One operation.
        first: &'static str,
        /// The other one.
        second: &'static str,
    },
    /// Two layouts of one tensor that disagree on its shape.
    #[error(
        "the layouts are of different shapes, {source_shape:?} and {target_shape:?}: reshape first"
    )]
    ShapeMismatch {
        /// Global shape of the first layout.
        source_shape: Vec<usize>,
        /// Global shape of the second one.
        target_shape: Vec<usize>,
    },
    /// A text that is not a layout of this tensor on this mesh.
    #[error(
        "cannot read the layout, column {column}: {problem}\n  {text}\n  {:>column$}",
        "^"
    )]
    Parse {
        /// The whole text.
        text: String,
        /// Where the problem starts, in characters from 1.
        column: usize,
        /// The fault.
        problem: String,
    },
}

burn_dist_mesh::debug_by_message!(LayoutError);
