//! A file of a checkpoint, once it is known to be the one that the manifest means.

use crate::error::{CheckpointError, FileProblem, io_error};
use crate::format::{FileEntry, Header, PREFIX_BYTES, SaveId, checksum};
use crate::storage::{ReadFile, Storage};
use std::path::Path;

/// Opens a file and checks its size.
pub(crate) fn open(
    storage: &dyn Storage,
    path: &Path,
    entry: &FileEntry,
    save_id: SaveId,
) -> Result<Box<dyn ReadFile>, CheckpointError> {
    let file = storage.open(path);
    let file = file.map_err(io_error("open the file", path))?;
    let (expected, found) = (entry.bytes, file.num_bytes());
    if expected == found {
        return Ok(file);
    }
    let size = FileProblem::Size { expected, found };
    Err(problem(path, other_save(&*file, save_id).unwrap_or(size)))
}

/// Checks the header of a file that has been [opened](open); returns its JSON.
pub(crate) fn check_header(
    file: &dyn ReadFile,
    path: &Path,
    entry: &FileEntry,
    save_id: SaveId,
) -> Result<Vec<u8>, CheckpointError> {
    // No longer than the file, which has the size that the manifest says.
    let length = usize::try_from(entry.header_bytes).unwrap_or(usize::MAX);
    let mut header = vec![0; length];
    let read = file.read_at(&mut header, 0);
    read.map_err(io_error("read the header of", path))?;
    let (expected, found) = (entry.header_checksum, checksum(&header));
    if expected != found {
        let damaged = FileProblem::Checksum { expected, found };
        return Err(problem(path, other_save(file, save_id).unwrap_or(damaged)));
    }
    Ok(header.split_off(PREFIX_BYTES.min(length)))
}

/// Says so if the header of a file is that of another save.
fn other_save(file: &dyn ReadFile, expected: SaveId) -> Option<FileProblem> {
    let mut prefix = [0; PREFIX_BYTES];
    file.read_at(&mut prefix, 0).ok()?;
    let length = Header::length(prefix, file.num_bytes()).ok()?;
    let mut json = vec![0; length - PREFIX_BYTES];
    file.read_at(&mut json, PREFIX_BYTES as u64).ok()?;
    let header = Header::parse(&json).ok()?;
    let found = header.metadata.get("save_id")?.clone();
    (found != expected.to_string()).then_some(FileProblem::MixedUp { expected, found })
}

fn problem(path: &Path, problem: FileProblem) -> CheckpointError {
    let path = path.to_path_buf();
    CheckpointError::File { path, problem }
}
