//! Making layouts and deriving one from another.

use super::{DimLayout, Factor, Layout, LayoutError, Partial};
use burn_dist_mesh::{AxisIndex, MeshShape, ReduceOp};

impl Layout {
    /// Creates the layout in which every rank holds the whole tensor.
    pub fn replicated(shape: &[usize]) -> Layout {
        Layout {
            dims: shape.iter().map(|&size| DimLayout::whole(size)).collect(),
            partial: Vec::new(),
            at_rest: Vec::new(),
        }
    }

    /// Creates the layout in which one dim is split over `axes`, major to minor.
    ///
    /// # Panics
    /// If `dim` is not a dim of `shape`.
    pub fn sharded(shape: &[usize], dim: usize, axes: &[AxisIndex]) -> Layout {
        assert!(
            dim < shape.len(),
            "there is no dim {dim} in the shape {shape:?}"
        );
        let mut layout = Self::replicated(shape);
        layout.dims[dim].factors[0].axes = axes.to_vec();
        layout
    }

    /// Creates a layout from its parts, checked against the mesh and normalised.
    ///
    /// # Errors
    /// Those of [`Layout::validate`].
    pub fn new(
        dims: Vec<DimLayout>,
        partial: Vec<Partial>,
        at_rest: Vec<AxisIndex>,
        mesh: &MeshShape,
    ) -> Result<Layout, LayoutError> {
        let mut layout = Layout {
            dims,
            partial,
            at_rest,
        };
        layout.validate(mesh)?;
        layout.normalize(mesh);
        Ok(layout)
    }

    /// Checks that the layout makes sense on this mesh; it need not be normalised.
    ///
    /// # Errors
    /// [`LayoutError::EmptyDim`], [`LayoutError::UnknownAxis`], [`LayoutError::AxisTwice`],
    /// [`LayoutError::PipelineAxis`], [`LayoutError::RestNotSharded`], [`LayoutError::MixedPartial`].
    pub fn validate(&self, mesh: &MeshShape) -> Result<(), LayoutError> {
        if let Some(dim) = self.dims.iter().position(|dim| dim.factors.is_empty()) {
            return Err(LayoutError::EmptyDim { dim });
        }
        let partial = self.partial.iter().map(|partial| partial.axis);
        let mut seen = vec![false; mesh.num_axes()];
        for axis in self.sharded_axes().chain(partial) {
            let seen = seen
                .get_mut(usize::from(axis.0))
                .ok_or_else(|| unknown_axis(axis, mesh))?;
            let name = || mesh.name(axis).to_owned();
            if std::mem::replace(seen, true) {
                return Err(LayoutError::AxisTwice { axis: name() });
            }
            if mesh.role(axis).cuts_stages() {
                return Err(LayoutError::PipelineAxis { axis: name() });
            }
        }
        for (i, &axis) in self.at_rest.iter().enumerate() {
            if usize::from(axis.0) >= mesh.num_axes() {
                return Err(unknown_axis(axis, mesh));
            }
            let name = || mesh.name(axis).to_owned();
            if !self.sharded_axes().any(|other| other == axis) {
                return Err(LayoutError::RestNotSharded { axis: name() });
            }
            if self.at_rest[..i].contains(&axis) {
                return Err(LayoutError::AxisTwice { axis: name() });
            }
        }
        if let [first, rest @ ..] = self.partial.as_slice()
            && let Some(other) = rest.iter().find(|other| !first.op.commutes_with(other.op))
        {
            return Err(LayoutError::MixedPartial {
                first: first.op.name(),
                second: other.op.name(),
            });
        }
        Ok(())
    }

    /// Brings the layout into its one normal form: drops axes of size 1, merges neighbouring factors that nothing
    /// splits, sorts.
    ///
    /// The placement of every element stays the same.
    pub fn normalize(&mut self, mesh: &MeshShape) {
        for factor in self.dims.iter_mut().flat_map(|dim| &mut dim.factors) {
            factor.axes.retain(|&axis| mesh.size(axis) > 1);
        }
        self.partial.retain(|partial| mesh.size(partial.axis) > 1);
        self.at_rest.retain(|&axis| mesh.size(axis) > 1);
        self.tidy();
    }

    /// The part of [`Layout::normalize`] that needs no mesh.
    pub(crate) fn tidy(&mut self) {
        for dim in &mut self.dims {
            dim.merge_whole_factors();
        }
        self.partial.sort();
        self.partial.dedup();
        self.at_rest.sort();
        self.at_rest.dedup();
    }

    /// Returns the number of tensor dims.
    pub fn ndim(&self) -> usize {
        self.dims.len()
    }

    /// Returns the global shape.
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(DimLayout::size).collect()
    }

    /// Returns the global number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().map(DimLayout::size).product()
    }

    /// Returns whether every rank holds the whole value.
    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.dims.iter().all(DimLayout::is_whole)
    }

    /// Returns whether the value is the reduction of parts that different ranks hold.
    pub fn has_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Returns the operation of a partial axis, if the value is partial over it.
    pub fn partial_op(&self, axis: AxisIndex) -> Option<ReduceOp> {
        let partial = self.partial.iter().find(|partial| partial.axis == axis)?;
        Some(partial.op)
    }

    /// Returns the axes that split dims, in the order of the dims.
    pub fn sharded_axes(&self) -> impl Iterator<Item = AxisIndex> + '_ {
        self.dims.iter().flat_map(DimLayout::axes)
    }

    /// Returns every axis that splits a dim or makes the value partial, sorted.
    pub fn axes_used(&self) -> Vec<AxisIndex> {
        let partial = self.partial.iter().map(|partial| partial.axis);
        let mut axes: Vec<_> = self.sharded_axes().chain(partial).collect();
        axes.sort();
        axes
    }

    /// Returns (dim, factor) of the factor that an axis splits.
    pub fn position(&self, axis: AxisIndex) -> Option<(usize, usize)> {
        self.dims.iter().enumerate().find_map(|(d, dim)| {
            let f = dim.factors.iter().position(|f| f.axes.contains(&axis))?;
            Some((d, f))
        })
    }

    /// Returns this layout with the value partial over `axes` as well.
    pub fn with_partial(&self, axes: &[AxisIndex], op: ReduceOp) -> Layout {
        let mut layout = self.clone();
        layout
            .partial
            .extend(axes.iter().map(|&axis| Partial { axis, op }));
        layout.tidy();
        layout
    }

    /// Returns this layout with its partial axes resolved: every rank of a group holds the reduced value.
    pub fn resolved(&self) -> Layout {
        Layout {
            partial: Vec::new(),
            ..self.clone()
        }
    }

    /// Returns this layout with `axes` unused: what they split is whole, what is partial over them is resolved.
    pub fn without_axes(&self, axes: &[AxisIndex]) -> Layout {
        let mut layout = self.clone();
        for factor in layout.dims.iter_mut().flat_map(|dim| &mut dim.factors) {
            factor.axes.retain(|axis| !axes.contains(axis));
        }
        layout.partial.retain(|p| !axes.contains(&p.axis));
        layout.at_rest.retain(|axis| !axes.contains(axis));
        layout.tidy();
        layout
    }

    /// Returns this layout with the axes at rest gathered.
    pub fn gathered(&self) -> Layout {
        if self.at_rest.is_empty() {
            return self.clone();
        }
        self.without_axes(&self.at_rest)
    }
}

impl DimLayout {
    /// Merges neighbouring factors without axes; drops factors of size 1 without axes beside others; makes an empty dim
    /// one factor.
    pub fn merge_whole_factors(&mut self) {
        if self.factors.len() < 2 {
            return;
        }
        if self.size() == 0 {
            let axes = self.axes().collect();
            self.factors = vec![Factor { size: 0, axes }];
            return;
        }
        let mut merged: Vec<Factor> = Vec::with_capacity(self.factors.len());
        for factor in self.factors.drain(..) {
            match merged.last_mut() {
                _ if factor.size == 1 && factor.axes.is_empty() => {}
                Some(last) if last.axes.is_empty() && factor.axes.is_empty() => {
                    last.size *= factor.size;
                }
                _ => merged.push(factor),
            }
        }
        if merged.is_empty() {
            merged.push(Factor::whole(1));
        }
        self.factors = merged;
    }
}

fn unknown_axis(axis: AxisIndex, mesh: &MeshShape) -> LayoutError {
    LayoutError::UnknownAxis {
        axis: axis.0,
        mesh: mesh.to_string(),
        num_axes: mesh.num_axes(),
    }
}
