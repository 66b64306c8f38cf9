//! Reading pieces: those that lie together at once, and each to where it belongs.

use super::pieces::Piece;
use crate::error::{CheckpointError, io_error};
use crate::load::Convert;
use crate::storage::ReadFile;
use std::path::Path;

/// The most bytes of one read that goes through memory of the reader, and the most pieces.
const SCRATCH_BYTES: usize = if cfg!(test) { 64 } else { 4 << 20 };
const PIECES: usize = 1 << 16;
/// From this size on, bytes are read straight into the buffer they go to.
const DIRECT_BYTES: usize = if cfg!(test) { 48 } else { 1 << 18 };
/// Bytes that nobody needs are read too where that saves a read: a disk reads no less.
const GAP_BYTES: u64 = if cfg!(test) { 6 } else { 1 << 12 };
/// So many elements of every piece are placed at once, so that what they are placed in stays in the cache.
const TILE: usize = 64;

/// Reads pieces of one tensor into a buffer.
pub(super) struct Batch<'a> {
    pub file: &'a dyn ReadFile,
    pub path: &'a Path,
    /// The first byte of the tensor, and the bytes of an element of it.
    pub offset: u64,
    pub source_size: usize,
    pub target: &'a mut [u8],
    pub target_size: usize,
    pub convert: Option<&'a Convert<'a>>,
    /// The pieces that are read together: `from` is a byte of the scratch memory.
    pieces: Vec<Piece>,
    /// How much of the scratch memory was read.
    filled: usize,
    /// The range that is to be read next: where it starts and ends in the file.
    start: u64,
    end: u64,
    scratch: Vec<u8>,
    converted: Vec<u8>,
    pub bytes_read: u64,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        (file, path): (&'a dyn ReadFile, &'a Path),
        (offset, source_size): (u64, usize),
        (target, target_size): (&'a mut [u8], usize),
        convert: Option<&'a Convert<'a>>,
    ) -> Self {
        Self {
            file,
            path,
            offset,
            source_size,
            target,
            target_size,
            convert,
            pieces: Vec::new(),
            filled: 0,
            start: 0,
            end: 0,
            scratch: Vec::new(),
            converted: Vec::new(),
            bytes_read: 0,
        }
    }

    /// Reads a piece, or keeps it to read it with the next ones.
    pub(super) fn add(&mut self, piece: Piece) -> Result<(), CheckpointError> {
        let bytes = piece.len * self.source_size;
        if piece.stride == 1 && self.convert.is_none() && bytes >= DIRECT_BYTES {
            let at = piece.to * self.target_size;
            let from = self.offset + (piece.from * self.source_size) as u64;
            let read = self.file.read_at(&mut self.target[at..at + bytes], from);
            read.map_err(io_error("read the file", self.path))?;
            self.bytes_read += bytes as u64;
            return Ok(());
        }
        let step = (SCRATCH_BYTES / self.source_size).max(1);
        for first in (0..piece.len).step_by(step) {
            self.keep(Piece {
                from: piece.from + first,
                len: step.min(piece.len - first),
                to: piece.to + first * piece.stride,
                stride: piece.stride,
            })?;
        }
        Ok(())
    }

    fn keep(&mut self, piece: Piece) -> Result<(), CheckpointError> {
        let size = self.source_size;
        let start = self.offset + (piece.from * size) as u64;
        let end = start + (piece.len * size) as u64;
        let has_room = |from: u64| {
            self.filled as u64 + (end - from) <= SCRATCH_BYTES as u64 && self.pieces.len() < PIECES
        };
        let is_near = start >= self.end && start - self.end <= GAP_BYTES;
        if self.start == self.end || !is_near || !has_room(self.start) {
            self.read()?;
            if self.filled as u64 + (end - start) > SCRATCH_BYTES as u64
                || self.pieces.len() >= PIECES
            {
                self.place();
            }
            self.start = start;
        }
        // Within the scratch memory.
        let before = usize::try_from(start - self.start).unwrap_or(usize::MAX);
        self.pieces.push(Piece {
            from: self.filled + before,
            ..piece
        });
        self.end = end;
        Ok(())
    }

    /// Reads and places what is left.
    pub(super) fn finish(&mut self) -> Result<(), CheckpointError> {
        self.read()?;
        self.place();
        Ok(())
    }

    /// Reads what is to be read next.
    fn read(&mut self) -> Result<(), CheckpointError> {
        // Within the scratch memory.
        let length = usize::try_from(self.end - self.start).unwrap_or(usize::MAX);
        let filled = self.filled + length;
        if self.scratch.len() < filled {
            self.scratch.resize(filled, 0);
        }
        let target = &mut self.scratch[self.filled..filled];
        let read = self.file.read_at(target, self.start);
        read.map_err(io_error("read the file", self.path))?;
        self.bytes_read += length as u64;
        (self.filled, self.start) = (filled, self.end);
        Ok(())
    }

    /// Places what was read: many pieces at once, so that neighbours are placed while their place is in the cache.
    fn place(&mut self) {
        if let Some(convert) = self.convert {
            let elements: usize = self.pieces.iter().map(|piece| piece.len).sum();
            let bytes = elements * self.target_size;
            if self.converted.len() < bytes {
                self.converted.resize(bytes, 0);
            }
            let mut at = 0;
            for piece in &mut self.pieces {
                let from = piece.from..piece.from + piece.len * self.source_size;
                let to = at..at + piece.len * self.target_size;
                convert(&self.scratch[from], &mut self.converted[to.clone()]);
                (piece.from, at) = (to.start, to.end);
            }
        }
        let source = match self.convert {
            Some(_) => &self.converted,
            None => &self.scratch,
        };
        place(&self.pieces, source, self.target, self.target_size);
        self.pieces.clear();
        self.filled = 0;
    }
}

/// Copies pieces, whose `from` is a byte of `source`, to where they belong.
fn place(pieces: &[Piece], source: &[u8], target: &mut [u8], size: usize) {
    match size {
        1 => place_elements::<1>(pieces, source, target),
        2 => place_elements::<2>(pieces, source, target),
        4 => place_elements::<4>(pieces, source, target),
        _ => place_elements::<8>(pieces, source, target),
    }
}

fn place_elements<const N: usize>(pieces: &[Piece], source: &[u8], target: &mut [u8]) {
    let longest = pieces.iter().map(|piece| piece.len).max().unwrap_or(0);
    let (target, _) = target.as_chunks_mut::<N>();
    for tile in (0..longest).step_by(TILE) {
        for piece in pieces {
            let end = piece.len.min(tile + TILE);
            if end <= tile {
                continue;
            }
            let (from, _) = source[piece.from + tile * N..piece.from + end * N].as_chunks::<N>();
            let mut to = piece.to + tile * piece.stride;
            for element in from {
                target[to] = *element;
                to += piece.stride;
            }
        }
    }
}
