//! The tensors of a safetensors file, once its header makes sense.

use super::FolderProblem;
use crate::error::{CheckpointError, io_error};
use crate::format::{Header, PREFIX_BYTES, dtype_of_safetensors};
use crate::region::Region;
use crate::storage::ReadFile;
use crate::stored::Stored;
use std::path::Path;

/// The name of the type in safetensors: 4 bits of exponent, 3 of mantissa.
pub(crate) const FLOAT8: &str = "F8_E4M3";

/// Reads the header of a file, which is to be number `index`: every tensor lies in it, and they share no byte.
pub(super) fn read(
    file: &dyn ReadFile,
    path: &Path,
    index: usize,
) -> Result<Vec<(String, Stored)>, CheckpointError> {
    let problem = |problem| {
        let path = path.to_path_buf();
        CheckpointError::Folder { path, problem }
    };
    let read = |buffer: &mut [u8], offset| {
        let read = file.read_at(buffer, offset);
        read.map_err(io_error("read the header of", path))
    };
    let mut prefix = [0; PREFIX_BYTES];
    read(&mut prefix, 0)?;
    let length = Header::length(prefix, file.num_bytes());
    let length = length.map_err(|error| problem(error.into()))?;
    let mut json = vec![0; length - PREFIX_BYTES];
    read(&mut json, PREFIX_BYTES as u64)?;
    let header = Header::parse(&json).map_err(|error| problem(error.into()))?;
    drop(json);
    tensors(header, length as u64, file.num_bytes(), index).map_err(problem)
}

fn tensors(
    header: Header,
    first: u64,
    file_bytes: u64,
    index: usize,
) -> Result<Vec<(String, Stored)>, FolderProblem> {
    let mut entries = header.into_tensors();
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end = 0;
    let mut tensors = Vec::with_capacity(entries.len());
    for (tensor, entry) in entries {
        let [from, to] = entry.data_offsets;
        if from != end || to < from {
            return Err(FolderProblem::Offsets {
                tensor,
                from,
                to,
                expected: end,
            });
        }
        let dtype = dtype_of_safetensors(&entry.dtype);
        let size = match entry.dtype == FLOAT8 {
            true => Some(1),
            false => dtype.map(|dtype| dtype.size() as u64),
        };
        let bytes = Region::whole(&entry.shape).ok().and_then(|region| {
            // Of other types only the file knows.
            size.map_or(Some(to - from), |size| {
                (region.numel() as u64).checked_mul(size)
            })
        });
        if bytes != Some(to - from) {
            return Err(FolderProblem::TensorBytes {
                tensor,
                dtype: entry.dtype,
                shape: entry.shape,
                bytes: to - from,
            });
        }
        let stored = Stored {
            file: index,
            offset: first.saturating_add(from),
            dtype,
            dtype_name: entry.dtype,
            shape: entry.shape,
        };
        tensors.push((tensor, stored));
        end = to;
    }
    match first.saturating_add(end) {
        expected if expected == file_bytes => Ok(tensors),
        expected => Err(FolderProblem::Size {
            expected,
            found: file_bytes,
        }),
    }
}
