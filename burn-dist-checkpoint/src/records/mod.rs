//! Records of Burn 0.21's modules, read and written without Burn: named MessagePack and burnpack.
//!
//! Reading notes where the bytes of tensors are; writing says what comes before, between and after them. So a record
//! may be larger than memory.

mod bpk;
mod dtype;
mod error;
mod id;
mod mpk;
#[cfg(test)]
pub(crate) mod tests;

pub use error::RecordProblem;

pub(crate) use bpk::{MAGIC as BPK_MAGIC, layout as bpk_layout, open as open_bpk};
pub(crate) use mpk::{is_start as is_mpk_start, layout as mpk_layout, open as open_mpk};

use crate::stored::Tensors;
use burn_dist_mesh::DType;
use std::collections::BTreeMap;

/// A record that is there.
pub(crate) struct Record {
    /// By the path of the module and the name of the parameter.
    pub tensors: Tensors,
    /// The ids of the parameters that have one.
    pub ids: BTreeMap<String, u64>,
}

/// A parameter of a record that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub key: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub id: Option<u64>,
}

/// A file: some bytes and a tensor after each, then the last bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes, and the index of the parameter whose elements follow them.
    pub parts: Vec<(Vec<u8>, usize)>,
    pub end: Vec<u8>,
}

impl Parameter {
    /// Returns the bytes of its elements.
    fn num_bytes(&self) -> u64 {
        let numel: usize = self.shape.iter().product();
        (numel as u64).saturating_mul(self.dtype.size() as u64)
    }
}
