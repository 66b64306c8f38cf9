//! All tensors of a checkpoint in one plain safetensors file.

use super::stream::{Stream, element_bytes, whole};
use crate::error::{CheckpointError, io_error};
use crate::format::{Header, TensorEntry, safetensors_name};
use crate::load::Checkpoint;
use crate::storage::Storage;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes every tensor, whole and under its key, to one safetensors file, and syncs it.
///
/// After an error, the start of a file is left.
///
/// # Errors
/// [`CheckpointError::Io`], also if the file is there; [`CheckpointError::Header`]; those of reading, damaged blocks
/// included.
pub fn consolidate(
    checkpoint: &Checkpoint,
    storage: &dyn Storage,
    path: &Path,
) -> Result<(), CheckpointError> {
    let mut tensors: Vec<&TensorEntry> = checkpoint.manifest().tensors.iter().collect();
    // Large elements first: every tensor is aligned to its elements.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(element_bytes(tensor)));
    let entries = tensors.iter().map(|tensor| {
        let name = tensor.dtype().and_then(safetensors_name).unwrap_or("U8");
        let numel: usize = tensor.shape.iter().product();
        let bytes = (numel * element_bytes(tensor)) as u64;
        (tensor.key.as_str(), name, tensor.shape.clone(), bytes)
    });
    let header = Header::to_bytes(&BTreeMap::new(), entries)
        .map_err(|source| CheckpointError::Header { writer: 0, source })?;
    let file = storage.create(path);
    let mut file = file.map_err(io_error("create the file", path))?;
    let mut append = |bytes: &[u8]| {
        let appended = file.append(bytes);
        appended.map_err(io_error("write the file", path))
    };
    append(&header)?;
    let mut stream = Stream::new(checkpoint);
    for tensor in tensors {
        stream.read(tensor, &whole(tensor)?, &mut append)?;
    }
    file.sync().map_err(io_error("sync the file", path))
}
