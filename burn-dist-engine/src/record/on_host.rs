//! Data of the host that enters a mesh as a tensor.

use std::sync::Arc;

use crate::burn::data::*;
use crate::layout::{Layout, Rows, of_batch};
use crate::mesh::MeshShape;
use crate::options::InputPolicy;
use crate::plan::Origin;

/// Data, not yet on the ranks.
#[derive(Clone)]
pub(super) struct OnHost {
    pub data: Arc<TensorData>,
    /// The source of its values.
    pub origin: Origin,
    /// Set if this process has a part of it.
    pub part: Option<Part>,
}

impl OnHost {
    pub(super) fn new(data: TensorData, origin: Origin, part: Option<Box<Part>>) -> Self {
        Self {
            data: Arc::new(data),
            origin,
            part: part.map(|part| *part),
        }
    }
}

/// The rows of a batch that are this process's data, and the layout of the whole.
#[derive(Clone)]
pub(super) struct Part {
    pub rows: Rows,
    pub layout: Arc<Layout>,
}

/// Returns the layout in which a batch enters.
pub(super) fn batch_layout(mesh: &MeshShape, input: InputPolicy, shape: &[usize]) -> Layout {
    match input {
        InputPolicy::Batch => of_batch(mesh, shape),
        InputPolicy::Replicate => Layout::replicated(shape),
    }
}
