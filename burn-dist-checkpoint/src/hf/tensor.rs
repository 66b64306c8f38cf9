//! Descriptions of tensors before they are written.

use crate::error::CheckpointError;
use crate::format::safetensors_name;
use crate::region::Region;
use burn_dist_mesh::DType;
use std::collections::BTreeSet;

/// A tensor of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its own shape: [`Form::stored_shape`](super::Form::stored_shape) of that of its parameter.
    pub shape: Vec<usize>,
    /// True if its elements, bytes by their type, are the bits of floats (`F8_E4M3`).
    pub float8: bool,
}

impl Tensor {
    /// Describes a tensor.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<usize>) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape,
            float8: false,
        }
    }

    /// Describes a tensor of floats of 8 bits. [`Float8`](super::Float8) says what belongs to it.
    pub fn float8(name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self {
            float8: true,
            ..Self::new(name, DType::U8, shape)
        }
    }
}

/// Returns the bytes of a tensor, if a folder can hold it.
pub(super) fn num_bytes(tensor: &Tensor) -> Result<u64, CheckpointError> {
    let (key, dtype) = (|| tensor.name.clone(), tensor.dtype);
    if safetensors_name(dtype).is_none() {
        return Err(CheckpointError::DType { key: key(), dtype });
    }
    let region = Region::whole(&tensor.shape);
    let region = region.map_err(|source| CheckpointError::Region { key: key(), source })?;
    Ok((region.numel() as u64).saturating_mul(dtype.size() as u64))
}

/// Refuses names that no tensor can have, and those of two.
pub(super) fn check_names(tensors: &[Tensor]) -> Result<(), CheckpointError> {
    let mut names = BTreeSet::new();
    for Tensor { name, .. } in tensors {
        let key = name.clone();
        if name.is_empty() || name == "__metadata__" {
            return Err(CheckpointError::Key { key });
        }
        if !names.insert(name) {
            return Err(CheckpointError::DuplicateKey { key });
        }
    }
    Ok(())
}
