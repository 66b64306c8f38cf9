//! An output whose parts are received straight into it.
//!
//! Where every part of an output is one run of bytes, the output is made when the call starts, and what comes from
//! other processes is received where it belongs.

use super::pool::{Pool, PoolMemory};
use crate::Block;
use crate::geometry::{Geometry, Output, Source};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// An output that is being filled, part by part.
pub struct Gathered {
    buffer: Arc<PoolMemory>,
    /// By member, its part; taken when it is filled, so that nobody writes a byte twice.
    parts: Vec<Option<Range<usize>>>,
}

/// A part of an output that one message fills.
pub struct Region {
    buffer: Arc<PoolMemory>,
    range: Range<usize>,
}

impl Region {
    /// Where the bytes go: as many as it was asked for, which nobody else reads or writes while the region lives.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the range lies within the buffer.
        unsafe { self.buffer.as_ptr().add(self.range.start) }
    }

    /// Copies bytes there.
    ///
    /// # Panics
    /// If they are not as many as the region has.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert_eq!(
            bytes.len(),
            self.range.len(),
            "a part has the size of its region"
        );
        self.put(0, bytes);
    }

    /// Copies bytes there, from byte `at` on.
    ///
    /// # Panics
    /// If they are more than the region has from there on.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        let rest = self.rest(at);
        assert!(bytes.len() <= rest.len(), "a part has its region");
        let start = rest.as_mut_ptr().cast();
        // SAFETY: there are so many bytes, which nobody else has.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    }

    /// The bytes from byte `at` on, for whoever fills them.
    ///
    /// # Panics
    /// If the region has fewer.
    pub fn rest(&mut self, at: usize) -> &mut [MaybeUninit<u8>] {
        let len = self.range.len();
        assert!(at <= len, "a region ends with its bytes");
        // SAFETY: a region has its bytes to itself, and these lie in it.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(at).cast(), len - at) }
    }
}

impl Gathered {
    /// Returns an output of `bytes` bytes that is one part, the member's with number 0.
    pub fn whole(bytes: usize, pool: &Arc<Pool>) -> Self {
        Self {
            buffer: Arc::new(pool.take(bytes)),
            parts: vec![Some(0..bytes)],
        }
    }

    /// Returns a buffer of `bytes` bytes with its only part. It is [finished](Self::finish) when that is filled and
    /// gone.
    #[cfg(feature = "tcp")]
    pub(crate) fn one(bytes: usize, pool: &Arc<Pool>) -> (Self, Region) {
        let buffer = Arc::new(pool.take(bytes));
        let (parts, range) = (vec![None], 0..bytes);
        let region = Region {
            buffer: Arc::clone(&buffer),
            range,
        };
        (Self { buffer, parts }, region)
    }

    /// Returns the output of a call in which every member's input is one run of it; `None` if it is not of that kind,
    /// or no member of `here` reads it.
    pub(crate) fn new(geometry: &Geometry, here: &[bool], pool: &Arc<Pool>) -> Option<Self> {
        let [Output::Filled { bytes }] = geometry.outputs[..] else {
            return None;
        };
        let mut readers = geometry.readers.iter().zip(here);
        if !readers.any(|(reader, is_here)| reader.is_some() && *is_here) {
            return None;
        }
        let mut parts = vec![None; here.len()];
        for step in &geometry.moves {
            let Source::Member(member) = step.source else {
                return None;
            };
            let is_run = step.bytes() == step.run && step.src == 0;
            let part = step.dst..step.dst + step.run;
            if !is_run || parts[member].replace(part).is_some() {
                return None;
            }
        }
        let filled: usize = parts.iter().flatten().map(Range::len).sum();
        // What makes the buffer whole once every part is taken and filled: `Geometry` promises that its moves do not
        // overlap.
        assert_eq!(filled, bytes, "the moves of a collective cover its outputs");
        Some(Self {
            buffer: Arc::new(pool.take(bytes)),
            parts,
        })
    }

    /// Returns where a member's `bytes` bytes go, once.
    pub fn region(&mut self, member: usize, bytes: usize) -> Option<Region> {
        let part = self.parts.get_mut(member)?;
        part.as_ref().filter(|part| part.len() == bytes)?;
        Some(Region {
            buffer: Arc::clone(&self.buffer),
            range: part.take()?,
        })
    }

    /// Copies a member's input to its part.
    pub fn put(&mut self, member: usize, block: &Block) {
        if let Some(mut region) = self.region(member, block.len()) {
            region.fill(block.as_slice());
        }
    }

    /// Returns the output; `None` if nobody has asked for a part, or one is still being filled.
    pub fn finish(self) -> Option<Block> {
        let is_whole = self.parts.iter().flatten().all(|part| part.is_empty());
        let buffer = Arc::try_unwrap(self.buffer).ok().filter(|_| is_whole)?;
        // SAFETY: the parts cover the buffer, every one was handed out, and whoever got one has filled it and let go of
        // it.
        Some(Block::from(unsafe { buffer.finish() }))
    }
}
