//! Tensors that are to be saved, and the pieces of them that writers write.

use crate::format::{piece_name, safetensors_name};
use crate::region::Region;
use burn_dist_layout::Layout;
use burn_dist_mesh::{DType, Rank};
use std::ops::Range;

/// A tensor that is to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its path in the model or the optimizer.
    pub key: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The layout: who holds which part of it.
    pub layout: Layout,
    /// The pipeline stage that it is on; if there is none, ranks of all stages hold it.
    pub stage: Option<usize>,
}

impl Tensor {
    /// Creates one that every stage holds.
    pub fn new(key: impl Into<String>, dtype: DType, layout: Layout) -> Self {
        let (key, stage) = (key.into(), None);
        Self {
            key,
            dtype,
            layout,
            stage,
        }
    }
}

/// A piece that a writer writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the tensor.
    pub(super) tensor: usize,
    /// The key of the tensor.
    pub key: String,
    /// The type of its elements.
    pub dtype: DType,
    /// A rank of the writer that holds it.
    pub rank: Rank,
    /// The elements.
    pub region: Region,
    /// Which bytes these are in the block that the rank holds under the tensor's layout, row-major.
    pub bytes: Range<usize>,
}

impl Share {
    /// Returns its name and type in a safetensors file.
    pub(super) fn entry(&self) -> (String, &'static str) {
        let dtype = safetensors_name(self.dtype).expect("the plan has no quantized tensors");
        (piece_name(&self.key, &self.region), dtype)
    }
}
