//! Verification of every file, header and block of a checkpoint against the manifest.

use crate::error::{CheckpointError, FileProblem, io_error};
use crate::format::{Header, MANIFEST, TensorEntry, checksum, piece_name, safetensors_name};
use crate::load::{Checkpoint, check_header, open_file};
use crate::region::RegionError;
use crate::storage::ReadFile;
use std::path::Path;

/// Read at once, in whole blocks.
const CHUNK_BYTES: usize = 4 << 20;

/// The counts of a verification, and what is wrong.
#[derive(Debug, Default)]
pub struct Verified {
    /// Files that are as the manifest says.
    pub files: usize,
    /// Blocks that have their checksums.
    pub blocks: usize,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Everything that is wrong.
    pub problems: Vec<CheckpointError>,
}

/// Verifies all of a checkpoint. That its pieces make up its tensors is known since it was opened.
///
/// # Errors
/// [`CheckpointError::Io`] if the directory cannot be listed; what is wrong with a file is among the problems.
pub fn verify(checkpoint: &Checkpoint) -> Result<Verified, CheckpointError> {
    let mut verified = Verified::default();
    let manifest = checkpoint.manifest();
    // The pieces of every file, found once.
    let mut pieces: Vec<Vec<(&TensorEntry, usize)>> = vec![Vec::new(); manifest.files.len()];
    for tensor in &manifest.tensors {
        for (index, piece) in tensor.pieces.iter().enumerate() {
            pieces[piece.file].push((tensor, index));
        }
    }
    for (file, pieces) in pieces.iter_mut().enumerate() {
        // As they lie in the file.
        pieces.sort_by_key(|(tensor, index)| tensor.pieces[*index].offset);
        let before = verified.problems.len();
        if let Err(error) = verify_file(checkpoint, file, pieces, &mut verified) {
            verified.problems.push(error);
        }
        verified.files += usize::from(verified.problems.len() == before);
    }
    let names = checkpoint.storage().list(checkpoint.path());
    for name in names.map_err(io_error("list the directory", checkpoint.path()))? {
        if name != MANIFEST && manifest.files.iter().all(|file| file.name != name) {
            verified.problems.push(CheckpointError::File {
                path: checkpoint.path().join(name),
                problem: FileProblem::Unexpected,
            });
        }
    }
    Ok(verified)
}

fn verify_file(
    checkpoint: &Checkpoint,
    index: usize,
    pieces: &[(&TensorEntry, usize)],
    verified: &mut Verified,
) -> Result<(), CheckpointError> {
    let manifest = checkpoint.manifest();
    let (entry, id) = (&manifest.files[index], manifest.save_id);
    let path = checkpoint.path().join(&entry.name);
    let file = open_file(checkpoint.storage(), &path, entry, id)?;
    let json = check_header(&*file, &path, entry, id)?;
    let header = Header::parse(&json).map_err(|source| CheckpointError::File {
        path: path.clone(),
        problem: source.into(),
    })?;
    for &(tensor, piece) in pieces {
        let name = name_in(&header, tensor, piece, entry.header_bytes);
        let name = name.map_err(|source| CheckpointError::Region {
            key: tensor.key.clone(),
            source,
        })?;
        if let Some(name) = name {
            verified.problems.push(CheckpointError::File {
                path: path.clone(),
                problem: FileProblem::Piece { name },
            });
        }
        verify_piece(checkpoint, &*file, &path, (tensor, piece), verified)?;
    }
    Ok(())
}

/// Returns the name of a piece that the header does not have as the manifest does.
fn name_in(
    header: &Header,
    tensor: &TensorEntry,
    piece: usize,
    header_bytes: u64,
) -> Result<Option<String>, RegionError> {
    let piece = &tensor.pieces[piece];
    let region = tensor.region(piece)?;
    let name = piece_name(&tensor.key, &region);
    let is_there = header.tensor(&name).is_some_and(|entry| {
        Some(entry.dtype.as_str()) == tensor.dtype().and_then(safetensors_name)
            && entry.shape == tensor.local_shape(piece)
            && entry.data_offsets[0].checked_add(header_bytes) == Some(piece.offset)
    });
    Ok((!is_there).then_some(name))
}

fn verify_piece(
    checkpoint: &Checkpoint,
    file: &dyn ReadFile,
    path: &Path,
    (tensor, piece): (&TensorEntry, usize),
    verified: &mut Verified,
) -> Result<(), CheckpointError> {
    let piece = &tensor.pieces[piece];
    let numel: usize = piece.extent.iter().product();
    let size = numel * super::stream::element_bytes(tensor);
    let block = checkpoint.manifest().block_bytes;
    let step = CHUNK_BYTES.next_multiple_of(block);
    let mut buffer = vec![0; step.min(size)];
    for start in (0..size).step_by(step) {
        let bytes = &mut buffer[..step.min(size - start)];
        let read = file.read_at(bytes, piece.offset + start as u64);
        read.map_err(io_error("read the file", path))?;
        for (index, bytes) in bytes.chunks(block).enumerate() {
            let number = start / block + index;
            let (expected, found) = (piece.checksums[number], checksum(bytes));
            if expected == found {
                verified.blocks += 1;
                verified.bytes += bytes.len() as u64;
                continue;
            }
            verified.problems.push(CheckpointError::Checksum {
                path: path.to_path_buf(),
                key: tensor.key.clone(),
                block: number,
                offset: piece.offset + (number * block) as u64,
                bytes: bytes.len(),
                expected,
                found,
            });
        }
    }
    Ok(())
}
