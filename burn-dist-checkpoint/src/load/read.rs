//! Reading jobs: positioned reads of whole blocks, their checksums, copies to where they belong.

use super::plan::{Job, Kind, SCRATCH_BYTES, Segment};
use super::{Checkpoint, file};
use crate::error::{CheckpointError, io_error};
use crate::format::{TensorEntry, checksum};
use crate::storage::ReadFile;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes are read and verified by so many, while they are in the processor's cache.
const CHUNK_BYTES: usize = 1 << 18;
/// Bytes that are read at once where nothing is verified.
const UNVERIFIED_GRANULE: usize = 1 << 12;

/// Bytes that nobody needs are read too where that saves a read.
const GAP_BYTES: u64 = 1 << 15;

/// Reads from one checkpoint; used by any number of threads.
pub(crate) struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    verify: bool,
    /// The files whose headers were checked.
    checked: Vec<AtomicBool>,
    bytes_needed: AtomicU64,
    bytes_read: AtomicU64,
}

/// Memory that a thread keeps from one read to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    buffer: Vec<u8>,
    file: Option<(usize, Box<dyn ReadFile>)>,
    segments: Vec<Segment>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, verify: bool) -> Self {
        let files = checkpoint.manifest().files.iter();
        Self {
            checkpoint,
            verify,
            checked: files.map(|_| AtomicBool::new(false)).collect(),
            bytes_needed: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
        }
    }

    /// Returns the bytes that were needed, and those that were read.
    pub(crate) fn num_bytes(&self) -> (u64, u64) {
        let [needed, read] = [&self.bytes_needed, &self.bytes_read];
        (needed.load(Ordering::Relaxed), read.load(Ordering::Relaxed))
    }

    /// Fills the buffers of some jobs, file by file.
    pub(crate) fn read(
        &self,
        jobs: &mut [Job<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), CheckpointError> {
        let granule = match self.verify {
            true => self.checkpoint.manifest().block_bytes,
            false => UNVERIFIED_GRANULE,
        };
        let mut segments = std::mem::take(&mut scratch.segments);
        segments.clear();
        for (index, job) in jobs.iter().enumerate() {
            let needed = job.segments(index, granule, &mut segments);
            let needed = needed.map_err(|source| CheckpointError::Region {
                key: job.tensor.key.clone(),
                source,
            })?;
            self.bytes_needed.fetch_add(needed, Ordering::Relaxed);
        }
        segments.sort_unstable_by_key(|segment| (segment.file, segment.offset));
        let mut rest = segments.as_slice();
        while let Some(first) = rest.first() {
            self.open(first.file, &mut scratch.file)?;
            rest = match first.kind {
                Kind::Direct(at) => {
                    self.direct(first, at, &mut jobs[first.job], scratch)?;
                    &rest[1..]
                }
                Kind::Scatter(_) => {
                    let (batch, after) = rest.split_at(batch(rest));
                    self.scatter(batch, jobs, scratch)?;
                    after
                }
            };
        }
        scratch.segments = segments;
        Ok(())
    }

    /// Makes `open` the file of this index; checks its header if nobody has.
    fn open(
        &self,
        index: usize,
        open: &mut Option<(usize, Box<dyn ReadFile>)>,
    ) -> Result<(), CheckpointError> {
        if open.as_ref().is_some_and(|(current, _)| *current == index) {
            return Ok(());
        }
        let (path, manifest) = (self.path(index), self.checkpoint.manifest());
        let (entry, id) = (&manifest.files[index], manifest.save_id);
        let opened = file::open(self.checkpoint.storage(), &path, entry, id)?;
        if !self.checked[index].load(Ordering::Relaxed) {
            file::check_header(&*opened, &path, entry, id)?;
            self.bytes_read
                .fetch_add(entry.header_bytes, Ordering::Relaxed);
            self.checked[index].store(true, Ordering::Relaxed);
        }
        *open = Some((index, opened));
        Ok(())
    }

    fn path(&self, file: usize) -> PathBuf {
        let name = &self.checkpoint.manifest().files[file].name;
        self.checkpoint.path().join(name)
    }

    /// Reads a segment straight into the buffer of its job.
    fn direct(
        &self,
        segment: &Segment,
        at: usize,
        job: &mut Job<'_>,
        scratch: &Scratch,
    ) -> Result<(), CheckpointError> {
        let tensor = job.tensor;
        let target = &mut job.target[at..at + segment.span.len()];
        let block = self.checkpoint.manifest().block_bytes;
        // Whole blocks, as the segment is.
        let chunk = CHUNK_BYTES.next_multiple_of(block);
        for (index, bytes) in target.chunks_mut(chunk).enumerate() {
            let done = index * chunk;
            self.fill(bytes, segment.offset + done as u64, segment.file, scratch)?;
            self.check(tensor, segment, segment.span.start + done, bytes)?;
        }
        Ok(())
    }

    /// Reads segments that follow each other in their file at once, and copies what is needed of them.
    fn scatter(
        &self,
        batch: &[Segment],
        jobs: &mut [Job<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), CheckpointError> {
        let start = batch[0].offset;
        let length = batch.iter().map(|segment| end(segment) - start).max();
        let length = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
        let mut buffer = std::mem::take(&mut scratch.buffer);
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        self.fill(&mut buffer[..length], start, batch[0].file, scratch)?;
        for segment in batch {
            let Kind::Scatter(elements) = &segment.kind else {
                continue;
            };
            // Within `length`, which fits.
            let from = usize::try_from(segment.offset - start).unwrap_or(usize::MAX);
            let bytes = &buffer[from..from + segment.span.len()];
            let job = &mut jobs[segment.job];
            self.check(job.tensor, segment, segment.span.start, bytes)?;
            copy(job, segment, elements.clone(), bytes)?;
        }
        scratch.buffer = buffer;
        Ok(())
    }

    fn fill(
        &self,
        buffer: &mut [u8],
        offset: u64,
        index: usize,
        scratch: &Scratch,
    ) -> Result<(), CheckpointError> {
        let Some((_, file)) = &scratch.file else {
            unreachable!("a file is opened before it is read");
        };
        let read = file.read_at(buffer, offset);
        read.map_err(|source| io_error("read the file", &self.path(index))(source))?;
        self.bytes_read
            .fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Verifies the blocks of a piece from its byte `from` on.
    fn check(
        &self,
        tensor: &TensorEntry,
        segment: &Segment,
        from: usize,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        if !self.verify {
            return Ok(());
        }
        let piece = &tensor.pieces[segment.piece];
        let size = self.checkpoint.manifest().block_bytes;
        for (index, block) in bytes.chunks(size).enumerate() {
            let number = from / size + index;
            let (expected, found) = (piece.checksums[number], checksum(block));
            if expected != found {
                return Err(CheckpointError::Checksum {
                    path: self.path(segment.file),
                    key: tensor.key.clone(),
                    block: number,
                    offset: piece.offset + (number * size) as u64,
                    bytes: block.len(),
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }
}

/// Returns how many of the first segments are read at once.
fn batch(segments: &[Segment]) -> usize {
    let (file, start) = (segments[0].file, segments[0].offset);
    let mut stop = end(&segments[0]);
    let follows = |segment: &&Segment| {
        let is_next = segment.file == file
            && segment.offset <= stop + GAP_BYTES
            && end(segment) - start <= SCRATCH_BYTES as u64
            && matches!(segment.kind, Kind::Scatter(_));
        stop = stop.max(end(segment));
        is_next
    };
    1 + segments[1..].iter().take_while(follows).count()
}

fn end(segment: &Segment) -> u64 {
    segment.offset + segment.span.len() as u64
}

/// Copies the elements of a segment to the buffer of its job.
fn copy(
    job: &mut Job<'_>,
    segment: &Segment,
    elements: std::ops::Range<usize>,
    bytes: &[u8],
) -> Result<(), CheckpointError> {
    let piece = &job.tensor.pieces[segment.piece];
    let region = job.tensor.region(piece);
    let region = region.map_err(|source| CheckpointError::Region {
        key: job.tensor.key.clone(),
        source,
    })?;
    let (source, target) = (region.runs(), job.region.runs());
    for copy in crate::region::overlap(&source, &target, elements) {
        let from = copy.source * job.source_size - segment.span.start;
        let to = (copy.target - job.within.start) * job.target_size;
        let from = &bytes[from..from + copy.len * job.source_size];
        let to = &mut job.target[to..to + copy.len * job.target_size];
        match job.convert {
            Some(convert) => convert(from, to),
            None => to.copy_from_slice(from),
        }
    }
    Ok(())
}
