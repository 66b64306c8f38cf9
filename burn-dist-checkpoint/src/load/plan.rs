//! Which bytes of which piece are read for a part of a request, and whether straight into its buffer.

use super::Convert;
use crate::format::{PieceEntry, TensorEntry};
use crate::region::{Copy, Region, RegionError, overlap};
use std::ops::Range;

/// From this size on, bytes are read straight into the buffer they go to.
const DIRECT_BYTES: usize = 1 << 18;
/// The most bytes of one read that goes through memory of the reader.
pub(super) const SCRATCH_BYTES: usize = 4 << 20;

/// Consecutive elements of a request, and their part of its buffer.
pub(crate) struct Job<'a> {
    pub tensor: &'a TensorEntry,
    pub region: &'a Region,
    /// Which elements of the region.
    pub within: Range<usize>,
    pub target: &'a mut [u8],
    pub convert: Option<&'a Convert<'a>>,
    /// Bytes of an element in the file and in the buffer.
    pub source_size: usize,
    pub target_size: usize,
}

/// Consecutive bytes of one piece, whole blocks of it.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Index of the job and of the piece in its tensor.
    pub job: usize,
    pub piece: usize,
    pub file: usize,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes of the piece.
    pub span: Range<usize>,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// They follow each other in the buffer, too, from this byte on.
    Direct(usize),
    /// These elements of the region are among them.
    Scatter(Range<usize>),
}

impl Job<'_> {
    /// Returns what is to be read for the job, by granules of so many bytes, and how many bytes of it are needed.
    pub(super) fn segments(
        &self,
        job: usize,
        granule: usize,
        found: &mut Vec<Segment>,
    ) -> Result<u64, RegionError> {
        let mut needed = 0;
        let target = self.region.runs();
        for (index, piece) in self.tensor.pieces.iter().enumerate() {
            let region = self.tensor.region(piece)?;
            if region.grid() == self.region.grid() && region.is_disjoint(self.region) {
                continue;
            }
            let mut cut = Cut {
                job,
                piece: (index, piece),
                granule,
                piece_bytes: region.numel() * self.source_size,
                found: &mut *found,
                open: None,
            };
            let source = region.runs();
            for copy in overlap(&source, &target, self.within.clone()) {
                needed += (copy.len * self.source_size) as u64;
                cut.add(self, copy);
            }
            cut.close();
        }
        Ok(needed)
    }
}

/// Cuts the copies from one piece into segments.
struct Cut<'a> {
    job: usize,
    piece: (usize, &'a PieceEntry),
    granule: usize,
    piece_bytes: usize,
    found: &'a mut Vec<Segment>,
    /// The segment that the next copy may still be part of: its bytes and elements.
    open: Option<(Range<usize>, Range<usize>)>,
}

impl Cut<'_> {
    fn add(&mut self, job: &Job<'_>, copy: Copy) {
        let size = job.source_size;
        let (start, end) = (copy.source * size, (copy.source + copy.len) * size);
        let middle = self.up(start)..self.down(end);
        if job.convert.is_some() || middle.end.saturating_sub(middle.start) < DIRECT_BYTES {
            return self.scatter(start..end, copy.target..copy.target + copy.len);
        }
        // Granules are whole elements: their size is a multiple of 8.
        let (before, after) = ((middle.start - start) / size, (end - middle.end) / size);
        let elements = copy.target + before..copy.target + copy.len - after;
        if before > 0 {
            self.scatter(start..middle.start, copy.target..elements.start);
        }
        self.close();
        let at = (elements.start - job.within.start) * job.target_size;
        self.push(middle.clone(), Kind::Direct(at));
        if after > 0 {
            self.scatter(middle.end..end, elements.end..copy.target + copy.len);
        }
    }

    fn scatter(&mut self, bytes: Range<usize>, elements: Range<usize>) {
        let (mut start, end) = (self.floor(bytes.start), self.up(bytes.end));
        match &mut self.open {
            Some((span, all)) if start <= span.end && end - span.start <= SCRATCH_BYTES => {
                span.end = span.end.max(end);
                all.end = elements.end;
                return;
            }
            _ => self.close(),
        }
        // A long run that is to be converted: by as much as the reader holds at once.
        let (per_element, mut first) = (bytes.len() / elements.len(), elements.start);
        while end - start > SCRATCH_BYTES {
            let stop = self.down(start + SCRATCH_BYTES).max(start + self.granule);
            let next = elements.start + (stop - bytes.start) / per_element;
            self.push(start..stop, Kind::Scatter(first..next));
            (start, first) = (stop, next);
        }
        self.open = Some((start..end, first..elements.end));
    }

    fn close(&mut self) {
        if let Some((span, elements)) = self.open.take() {
            self.push(span, Kind::Scatter(elements));
        }
    }

    fn push(&mut self, span: Range<usize>, kind: Kind) {
        let (index, piece) = self.piece;
        self.found.push(Segment {
            job: self.job,
            piece: index,
            file: piece.file,
            offset: piece.offset + span.start as u64,
            span,
            kind,
        });
    }

    fn floor(&self, byte: usize) -> usize {
        byte - byte % self.granule
    }

    /// The end of a piece ends its last granule.
    fn up(&self, byte: usize) -> usize {
        byte.next_multiple_of(self.granule).min(self.piece_bytes)
    }

    fn down(&self, byte: usize) -> usize {
        match byte == self.piece_bytes {
            true => byte,
            false => self.floor(byte),
        }
    }
}
