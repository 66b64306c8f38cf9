//! Gathers whose parts arrive in their places.
//!
//! Where every part of an output is one run of bytes, the output is made when the call starts, and what comes from
//! other processes is received straight into it.

use crate::Block;
use crate::buffer::{Pool, PoolMemory};
use crate::geometry::{Geometry, Output, Source};
use std::ops::Range;
use std::sync::Arc;

/// An output that is being filled.
pub(super) struct Landing {
    buffer: Arc<PoolMemory>,
    /// By member; taken when it is filled, so that nobody writes a place twice.
    places: Vec<Option<Range<usize>>>,
}

/// A part of an output that one message fills.
pub struct Slot {
    buffer: Arc<PoolMemory>,
    place: Range<usize>,
}

impl Slot {
    /// Where the bytes go: as many as it was asked for, which nobody else reads or writes while the slot lives.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the place lies within the buffer.
        unsafe { self.buffer.as_ptr().add(self.place.start) }
    }

    /// Copies bytes there.
    ///
    /// # Panics
    /// If they are not as many as the slot has.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert_eq!(
            bytes.len(),
            self.place.len(),
            "a part has the size of its place"
        );
        // SAFETY: a slot has its bytes to itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), bytes.len()) }
    }
}

impl Landing {
    /// Returns the output of a call in which every member's input is one run of it; `None` if it is not of that kind,
    /// or no member of `here` reads it.
    pub fn new(geometry: &Geometry, here: &[bool], pool: &Arc<Pool>) -> Option<Self> {
        let [Output::Filled { bytes }] = geometry.outputs[..] else {
            return None;
        };
        let mut readers = geometry.readers.iter().zip(here);
        if !readers.any(|(reader, is_here)| reader.is_some() && *is_here) {
            return None;
        }
        let mut places = vec![None; here.len()];
        for step in &geometry.moves {
            let Source::Member(member) = step.source else {
                return None;
            };
            let is_run = step.bytes() == step.run && step.src == 0;
            let place = step.dst..step.dst + step.run;
            if !is_run || places[member].replace(place).is_some() {
                return None;
            }
        }
        let filled: usize = places.iter().flatten().map(Range::len).sum();
        // What makes the buffer whole once every place is taken and filled: `Geometry` promises that its moves do not
        // overlap.
        assert_eq!(filled, bytes, "the moves of a collective cover its outputs");
        Some(Self {
            buffer: Arc::new(pool.take(bytes)),
            places,
        })
    }

    /// Returns the place of a member's `bytes` bytes, once.
    pub fn slot(&mut self, member: usize, bytes: usize) -> Option<Slot> {
        let place = self.places.get_mut(member)?;
        place.as_ref().filter(|place| place.len() == bytes)?;
        Some(Slot {
            buffer: Arc::clone(&self.buffer),
            place: place.take()?,
        })
    }

    /// Copies a member's input to its place.
    pub fn put(&mut self, member: usize, block: &Block) {
        if let Some(mut slot) = self.slot(member, block.len()) {
            slot.fill(block.as_slice());
        }
    }

    /// Returns the output; `None` if a place has not been given out, or is still being filled.
    pub fn finish(self) -> Option<Block> {
        let is_whole = self.places.iter().flatten().all(|place| place.is_empty());
        let buffer = Arc::try_unwrap(self.buffer).ok().filter(|_| is_whole)?;
        // SAFETY: the places cover the buffer, every one was given out, and whoever got one has filled it and let go of
        // it.
        Some(Block::from(unsafe { buffer.finish() }))
    }
}
