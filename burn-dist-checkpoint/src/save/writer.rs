//! One writer's file: its header, and the pieces one after the other, with their checksums.

use super::{SavePlan, Share};
use crate::error::{CheckpointError, io_error};
use crate::format::{BlockHasher, Checksum, NonFinite, SaveId, Tally, checksum, file_name};
use crate::storage::{Storage, WriteFile};
use burn_dist_mesh::DType;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Bytes are hashed and written by so many, so that they are read from memory once.
const CHUNK_BYTES: usize = 1 << 18;
/// Shorter writes are collected.
const SMALL_BYTES: usize = 1 << 17;

/// How far a writer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of elements that were handed to the file system.
    pub bytes_done: u64,
    /// All of them.
    pub bytes_total: u64,
}

/// The facts that the commit needs of a writer's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub(crate) save_id: SaveId,
    pub(crate) writer: usize,
    /// Tells whether all processes planned alike.
    pub(crate) header_checksum: Checksum,
    /// The checksums of the blocks of all pieces, in the order of the file.
    #[serde(with = "crate::format::checksum_list")]
    pub(crate) checksums: Vec<Checksum>,
    /// Which of the values are not finite.
    pub(crate) non_finite: Option<NonFinite>,
}

/// The file of one writer while it is written.
pub struct FileWriter<'a> {
    path: PathBuf,
    file: Box<dyn WriteFile>,
    hasher: BlockHasher,
    /// The tally of the current share.
    tally: Tally,
    /// Small pieces that are yet to be written.
    buffer: Vec<u8>,
    /// Bytes that the current share has, and those that it got.
    share_bytes: usize,
    given_bytes: usize,
    done: Progress,
    progress: &'a mut dyn FnMut(Progress),
}

impl FileWriter<'_> {
    /// Writes the next bytes of a share: all of it, or as much as is at hand.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]. More than the share has is found at its end: [`CheckpointError::Bytes`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        // What is too much is counted and not written.
        let room = self.share_bytes.saturating_sub(self.given_bytes);
        for chunk in bytes[..bytes.len().min(room)].chunks(CHUNK_BYTES) {
            self.hasher.update(chunk);
            self.tally.add(chunk);
            self.append(chunk)?;
            self.done.bytes_done += chunk.len() as u64;
            (self.progress)(self.done);
        }
        self.given_bytes = self.given_bytes.saturating_add(bytes.len());
        Ok(())
    }

    /// Writes every share.
    pub(crate) fn write_all(
        storage: &dyn Storage,
        directory: &Path,
        plan: &SavePlan,
        (save_id, writer): (SaveId, usize),
        source: &mut dyn FnMut(&Share, &mut FileWriter<'_>) -> Result<(), CheckpointError>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Part, CheckpointError> {
        let header = plan.header(writer, save_id)?;
        let path = directory.join(file_name(writer, plan.num_writers()));
        let file = storage
            .create(&path)
            .map_err(io_error("create the file", &path))?;
        let bytes_total = plan.num_bytes(writer);
        let mut writer_of_file = FileWriter {
            path,
            file,
            hasher: BlockHasher::new(plan.block_bytes()),
            tally: Tally::new(DType::U8),
            buffer: Vec::new(),
            share_bytes: 0,
            given_bytes: 0,
            done: Progress {
                bytes_done: 0,
                bytes_total,
            },
            progress,
        };
        writer_of_file.append(&header)?;
        let (mut checksums, mut non_finite) = (Vec::new(), None);
        for share in plan.shares(writer) {
            let (of_blocks, found) = writer_of_file.share(share, source)?;
            checksums.extend(of_blocks);
            non_finite = NonFinite::sum([non_finite, found]);
        }
        writer_of_file.end()?;
        Ok(Part {
            save_id,
            writer,
            header_checksum: checksum(&header),
            checksums,
            non_finite,
        })
    }

    fn share(
        &mut self,
        share: &Share,
        source: &mut dyn FnMut(&Share, &mut FileWriter<'_>) -> Result<(), CheckpointError>,
    ) -> Result<(Vec<Checksum>, Option<NonFinite>), CheckpointError> {
        self.share_bytes = share.bytes.len();
        self.given_bytes = 0;
        self.tally = Tally::new(share.dtype);
        source(share, self)?;
        if self.given_bytes != self.share_bytes {
            return Err(CheckpointError::Bytes {
                key: share.key.clone(),
                expected: self.share_bytes,
                found: self.given_bytes,
            });
        }
        let tally = std::mem::replace(&mut self.tally, Tally::new(share.dtype));
        Ok((self.hasher.finish(), tally.end(&share.key)))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.len() < SMALL_BYTES {
            self.buffer.extend_from_slice(bytes);
            return match self.buffer.len() < CHUNK_BYTES {
                true => Ok(()),
                false => self.flush(),
            };
        }
        self.flush()?;
        let appended = self.file.append(bytes);
        appended.map_err(io_error("write the file", &self.path))
    }

    fn flush(&mut self) -> Result<(), CheckpointError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let appended = self.file.append(&self.buffer);
        self.buffer.clear();
        appended.map_err(io_error("write the file", &self.path))
    }

    fn end(&mut self) -> Result<(), CheckpointError> {
        self.flush()?;
        let synced = self.file.sync();
        synced.map_err(io_error("sync the file", &self.path))
    }
}
