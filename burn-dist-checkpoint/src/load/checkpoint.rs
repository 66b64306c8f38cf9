//! A checkpoint that is there.

use super::{KeyReport, Request};
use crate::error::{CheckpointError, io_error};
use crate::format::{MANIFEST, MANIFEST_BYTES_MAX, Manifest, ManifestError};
use crate::storage::{Disk, Storage};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A complete checkpoint: its manifest, and where its files are.
#[derive(Clone)]
pub struct Checkpoint {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    manifest: Arc<Manifest>,
}

impl Checkpoint {
    /// Opens the checkpoint in a directory and checks its manifest; its files are checked as they are read.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`], [`CheckpointError::Manifest`] and [`CheckpointError::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open_on(Arc::new(Disk), path)
    }

    /// Does what [`Checkpoint::open`] does, on any storage.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open_on(
        storage: Arc<dyn Storage>,
        path: impl Into<PathBuf>,
    ) -> Result<Self, CheckpointError> {
        let path = path.into();
        let file = path.join(MANIFEST);
        let bytes = read_manifest(&*storage, &file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CheckpointError::Missing { path: path.clone() },
            _ => io_error("read the manifest", &file)(error),
        })?;
        let manifest = Manifest::from_bytes(bytes).map_err(|source: ManifestError| {
            let (path, source) = (file, Box::new(source));
            CheckpointError::Manifest { path, source }
        })?;
        Ok(Self {
            storage,
            path,
            manifest: Arc::new(manifest),
        })
    }

    /// Returns what it holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says what of it is not there: a file that the manifest lists, or the end of one. What is wrong otherwise is
    /// found as files are read.
    pub(crate) fn lacks(&self) -> Option<String> {
        self.manifest.files.iter().find_map(|entry| {
            let (name, bytes) = (&entry.name, entry.bytes);
            match self.storage.open(&self.path.join(name)) {
                Ok(file) if file.num_bytes() < bytes => {
                    Some(format!("{name} has {} of {bytes} bytes", file.num_bytes()))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Some(format!("{name} is not there"))
                }
                _ => None,
            }
        })
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Returns the differences between what is asked for and what there is.
    pub fn compare(&self, requests: &[Request<'_>]) -> KeyReport {
        let wanted = requests.iter().map(|request| {
            let (key, shape) = (request.key.as_str(), request.shape.clone());
            (key, request.dtype, shape, request.convert.is_some())
        });
        KeyReport::new(&self.manifest, wanted)
    }
}

/// Returns the bytes of a manifest; of what is none, the first, and up to a zero byte, which no text has: to a file's
/// hole, say.
pub(crate) fn read_manifest(storage: &dyn Storage, path: &Path) -> io::Result<Vec<u8>> {
    let file = storage.open(path)?;
    let length = usize::try_from(file.num_bytes()).map_err(io::Error::other)?;
    // Enough to know whether it is one: a hole may be larger than memory.
    let mut start = vec![0; length.min(64)];
    file.read_at(&mut start, 0)?;
    if !Manifest::is_start(&start) {
        return Ok(start);
    }
    // How much of it is text, before there is room for all of it.
    let mut part = vec![0; length.min(1 << 20)];
    let mut text = 0;
    while text < length {
        let part = &mut part[..(length - text).min(1 << 20)];
        file.read_at(part, text as u64)?;
        match part.iter().position(|byte| *byte == 0) {
            Some(at) => {
                text += at;
                break;
            }
            None => text += part.len(),
        }
        if text > MANIFEST_BYTES_MAX {
            let reason =
                format!("it has {length} bytes, and a manifest has at most {MANIFEST_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
    }
    drop(part);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(text).map_err(io::Error::other)?;
    bytes.resize(text, 0);
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
