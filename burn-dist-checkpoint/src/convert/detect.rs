//! The kind of a path: of what is there, or of what its name asks for.

use super::{ConvertError, Kind};
use crate::error::io_error;
use crate::format::MANIFEST;
use crate::hf::{INDEX, SINGLE};
use crate::records::{BPK_MAGIC, is_mpk_start};
use crate::save::Checkpoints;
use crate::storage::Storage;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Returns what a path holds, by its content.
pub(super) fn of_source(storage: &Arc<dyn Storage>, path: &Path) -> Result<Kind, ConvertError> {
    let unknown = |found: &str| {
        let (path, found) = (path.to_path_buf(), found.to_owned());
        Err(ConvertError::Unknown { path, found })
    };
    let file = match storage.open_linked(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let names = storage.list(path).map_err(io_error("open", path))?;
            let has = |name: &str| names.iter().any(|other| other == name);
            if has(MANIFEST) {
                return Ok(Kind::Checkpoint);
            }
            if has(SINGLE) || has(INDEX) {
                return Ok(Kind::Hf);
            }
            let run = Checkpoints::on(storage.clone(), path);
            return match run.steps()?.is_empty() {
                true => unknown("a directory without any of these"),
                false => Ok(Kind::Checkpoint),
            };
        }
        Err(error) => return Err(io_error("open", path)(error).into()),
    };
    let length = usize::try_from(file.num_bytes()).map_or(16, |length| length.min(16));
    let mut start = vec![0; length];
    let read = file.read_at(&mut start, 0);
    read.map_err(io_error("read the file", path))?;
    if start.starts_with(&BPK_MAGIC) {
        return Ok(Kind::Bpk);
    }
    if is_mpk_start(&start) {
        return Ok(Kind::Mpk);
    }
    match &start[..] {
        [] => unknown("an empty file"),
        [0x1f, 0x8b, ..] => unknown("compressed: unpack it with gunzip first"),
        [_, _, _, _, _, _, _, 0, b'{', ..] => {
            unknown("a safetensors file: give its folder, in which it is called model.safetensors")
        }
        _ => unknown("a file of another kind"),
    }
}

/// Returns what is written to a path on which nothing is yet.
pub(super) fn of_target(
    storage: &dyn Storage,
    path: &Path,
    kind: Option<Kind>,
) -> Result<Kind, ConvertError> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let kind = kind.or(match extension {
        Some("mpk") => Some(Kind::Mpk),
        Some("bpk") => Some(Kind::Bpk),
        _ => None,
    });
    let Some(kind) = kind else {
        let path = path.to_path_buf();
        return Err(ConvertError::Target { path });
    };
    let names = storage.list(path);
    let is_taken = match kind {
        // A directory of a run has room for the checkpoints of other steps.
        Kind::Checkpoint => storage.open(path).is_ok(),
        Kind::Hf => {
            let names = names.unwrap_or_default();
            let is_model = |name: &String| name == SINGLE || name == INDEX;
            storage.open(path).is_ok() || names.iter().any(is_model)
        }
        Kind::Mpk | Kind::Bpk => names.is_ok() || storage.open_linked(path).is_ok(),
    };
    match is_taken {
        true => Err(ConvertError::Exists {
            path: path.to_path_buf(),
            kind,
        }),
        false => Ok(kind),
    }
}
