//! Layouts that are cut into chunks.

use super::chunked::Chunked;
use super::op::Op;
use super::tensor::Slot;
use crate::layout::{DimLayout, Factor, Layout, simplify};
use crate::mesh::{AxisIndex, MeshShape};

/// A layout with an axis of chunks.
pub(crate) struct Cut {
    pub layout: Layout,
    /// The dim that is split over the chunks, and the factor of it.
    pub dim: usize,
    pub factor: usize,
}

impl Cut {
    /// Returns `layout` with the axis of chunks in the place of `axis`, the last of those that split a factor.
    pub(crate) fn of(layout: &Layout, axis: AxisIndex, chunks: &MeshShape) -> Option<Self> {
        let mut layout = layout.clone();
        let factors = layout.dims.iter_mut().flat_map(|dim| &mut dim.factors);
        let mut last = factors.filter_map(|factor| factor.axes.last_mut());
        *last.find(|of| **of == axis)? = chunk_axis(chunks);
        layout.at_rest.retain(|of| *of != axis);
        Self::found(&layout, chunks)
    }

    /// Returns what is split over the axis of chunks.
    pub(crate) fn found(layout: &Layout, chunks: &MeshShape) -> Option<Self> {
        let axis = chunk_axis(chunks);
        for (dim, factors) in layout.dims.iter().enumerate() {
            let is_cut = |factor: &Factor| factor.axes.last() == Some(&axis);
            if let Some(factor) = factors.factors.iter().position(is_cut) {
                return Some(Self {
                    layout: layout.clone(),
                    dim,
                    factor,
                });
            }
        }
        None
    }

    /// Returns the layout of the dim that is cut.
    pub(crate) fn rows(&self) -> &DimLayout {
        &self.layout.dims[self.dim]
    }

    /// Returns the layout of all chunks together, with the factors that it has here.
    pub(crate) fn together(&self) -> Layout {
        let mut layout = self.layout.clone();
        layout.dims[self.dim].factors[self.factor].axes.pop();
        layout
    }

    /// Returns whether the chunks together are a block of `layout`.
    pub(crate) fn is_of(&self, layout: &Layout, mesh: &MeshShape) -> bool {
        simplify(self.together(), mesh).dims == simplify(layout.clone(), mesh).dims
    }

    /// Returns the layout, partial over the same axes as `other`.
    pub(crate) fn layout_as(&self, other: &Layout) -> Layout {
        Layout {
            partial: other.partial.clone(),
            ..self.layout.clone()
        }
    }

    pub(crate) fn reshaped(&self, shape: &[usize], chunks: &MeshShape) -> Option<Self> {
        Self::found(&self.layout.reshape(chunks, shape)?, chunks)
    }
}

impl<O: Op> Chunked<O> {
    /// Returns what it takes pieces of.
    pub(crate) fn cut(&self) -> impl Iterator<Item = Slot> {
        let made: Vec<Slot> = self.made().collect();
        let inputs = self.steps.iter().flat_map(|step| {
            let inputs = step.op.inputs().map(|input| input.id);
            inputs.zip(&step.inputs)
        });
        let cut = inputs.filter(|(_, layout)| Cut::found(layout, &self.chunks).is_some());
        cut.map(|(slot, _)| slot)
            .filter(move |slot| !made.contains(slot))
    }
}

/// Returns the axis of chunks of a mesh that has one.
fn chunk_axis(chunks: &MeshShape) -> AxisIndex {
    chunks.axis_indices().last().expect("there is one")
}
