//! Bodies that are lent: processes of one machine read them from each other's memory, which is one copy in place of the
//! two of a connection, and none of what TCP does besides.
//!
//! A process shows its [`Card`], and lends once the other one has read the number on it: then both have the same
//! machine, and the system lets that one read. Elsewhere bodies go over the connection. A body stays where it is until
//! the other process is done with it, or is gone.

use super::frame::Card;
use crate::Block;
use crate::buffer::copy_from;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::MaybeUninit;

/// The number on the card of this process, and what it has lent over a connection.
pub(super) struct Loans {
    number: Box<u64>,
    /// True once the other process has read the number.
    may_lend: bool,
    lent: VecDeque<Block>,
    bytes: usize,
}

impl Loans {
    pub(super) fn new() -> Self {
        Self {
            number: Box::new(RandomState::new().build_hasher().finish()),
            may_lend: false,
            lent: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The card of this process, which has such a ring.
    pub(super) fn card(&self, ring: Option<u32>) -> Card {
        Card {
            ring,
            pid: std::process::id(),
            address: address(&raw const *self.number),
            number: *self.number,
        }
    }

    /// The other process has read the number.
    pub(super) fn open(&mut self) {
        self.may_lend = true;
    }

    /// Lends a body, if it may; returns its address.
    pub(super) fn lend(&mut self, body: &Block) -> Option<u64> {
        if !self.may_lend {
            return None;
        }
        self.bytes += body.len();
        self.lent.push_back(body.clone());
        Some(address(body.as_slice().as_ptr()))
    }

    /// The other process is done with the oldest loan; returns whether there was one.
    pub(super) fn end(&mut self) -> bool {
        let oldest = self.lent.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, Block::len);
        oldest.is_some()
    }

    /// Bytes that are lent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn address<T>(of: *const T) -> u64 {
    // The system reads there, for another process.
    of.expose_provenance() as u64
}

impl Card {
    /// Returns whether this process reads the number where the card says.
    pub(super) fn is_readable(self) -> bool {
        let mut found = [MaybeUninit::new(0_u8); 8];
        let Ok(address) = usize::try_from(self.address) else {
            return false;
        };
        let copied = copy_from(self.pid, address, &mut found);
        // SAFETY: they were zeros, and are what was copied.
        let found = found.map(|byte| unsafe { byte.assume_init() });
        copied.is_ok_and(|copied| copied == 8) && u64::from_ne_bytes(found) == self.number
    }
}
