//! Elements of a tensor, a few megabytes at a time.

use crate::error::CheckpointError;
use crate::format::TensorEntry;
use crate::load::{Checkpoint, Job, Reader, Scratch};
use crate::region::Region;

/// So much of a tensor is in memory at once; less in tests, whose tensors are small.
const CHUNK_BYTES: usize = if cfg!(test) { 64 } else { 32 << 20 };

/// Reads from one checkpoint with verified checksums.
pub(super) struct Stream<'a> {
    reader: Reader<'a>,
    scratch: Scratch,
    buffer: Vec<u8>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> Self {
        Self {
            reader: Reader::new(checkpoint, true),
            scratch: Scratch::default(),
            buffer: Vec::new(),
        }
    }

    /// Gives the elements of a region to `each`, in order.
    pub(super) fn read(
        &mut self,
        tensor: &TensorEntry,
        region: &Region,
        mut each: impl FnMut(&[u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let numel = region.numel();
        let step = chunk(element_bytes(tensor));
        for start in (0..numel).step_by(step) {
            let end = (start + step).min(numel);
            each(self.part(tensor, region, start..end)?)?;
        }
        Ok(())
    }

    /// Returns some elements of a region.
    pub(super) fn part(
        &mut self,
        tensor: &TensorEntry,
        region: &Region,
        within: std::ops::Range<usize>,
    ) -> Result<&[u8], CheckpointError> {
        let size = element_bytes(tensor);
        let bytes = within.len() * size;
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let job = Job {
            tensor,
            region,
            within,
            target: &mut self.buffer[..bytes],
            convert: None,
            source_size: size,
            target_size: size,
        };
        self.reader.read(&mut [job], &mut self.scratch)?;
        Ok(&self.buffer[..bytes])
    }
}

/// Returns how many elements of this size are read at once.
pub(super) fn chunk(element_bytes: usize) -> usize {
    CHUNK_BYTES / element_bytes
}

pub(super) fn element_bytes(tensor: &TensorEntry) -> usize {
    // Manifests with other types are refused when they are read.
    tensor.dtype().map_or(1, |dtype| dtype.size())
}

/// Returns all of a tensor.
pub(super) fn whole(tensor: &TensorEntry) -> Result<Region, CheckpointError> {
    Region::whole(&tensor.shape).map_err(|source| CheckpointError::Region {
        key: tensor.key.clone(),
        source,
    })
}
