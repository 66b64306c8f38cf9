//! Bytes between processes.
//!
//! A [`Transport`] sends and receives messages: it knows processes and bytes, and nothing of ranks, calls or faults.
//! Collectives are written once above it ([`execution`](super::execution)), and so is what processes tell each other
//! ([`processes`](super::processes)).
//!
//! | transport | between |
//! | --- | --- |
//! | `channels` | threads of this process, which stand for processes: tests and simulation, with delays from a seed |
//! | `mpi` | processes that a launcher of MPI has started (feature `mpi`) |
//! | `tcp` | processes that are connected already, as `burn_dist_launch` connects them (feature `tcp`) |
//!
//! The promises of each of them are tests, which others can run over theirs (`dev/conformance`).
//!
//! # What waits, and how much of it
//! `send` never waits. What has not left yet is counted ([`Transport::unsent_bytes`]), and above the transport ranks
//! that start calls wait while it is too much. A transport bounds by itself what it has received and not handed on.

mod channels;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "tcp")]
mod tcp;

pub use channels::Channels;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
#[cfg(feature = "tcp")]
pub use tcp::{Connection, Opening, Sealing, Tcp};

use crate::Block;
use crate::buffer::Region;

/// A message: a head, which the engine reads, and a block of a tensor, which may be empty.
#[derive(Clone, Debug)]
pub struct Message {
    /// The other process.
    pub process: u32,
    /// The description of the body; at most a few kilobytes.
    pub head: Vec<u8>,
    /// A block of a tensor. Empty, too, if it has been received straight into its region.
    pub body: Block,
}

/// Where the body of a message is to go.
pub enum Destination {
    /// Straight to where it is needed.
    Region(Region),
    /// Anywhere.
    Buffer,
    /// There may be a region soon.
    Later,
}

/// Says where the body of a message, of so many bytes, is to go.
pub type Matcher<'a> = &'a mut dyn FnMut(&[u8], usize) -> Destination;

/// How long a body of so many bytes waits for its call: at least as long as waiting for a slow neighbour takes, and for
/// large ones as long as the copy that it saves.
#[cfg(any(feature = "mpi", feature = "tcp"))]
fn held_max(bytes: usize) -> std::time::Duration {
    use std::time::Duration;
    const BYTES_PER_NS: u64 = 4;
    Duration::from_micros(300) + Duration::from_nanos(bytes as u64 / BYTES_PER_NS)
}

/// Moves messages between processes; used by one thread at a time.
///
/// Messages of one process to another arrive in the order in which they were sent.
pub trait Transport: Send {
    /// Returns whether any thread may use it, and not only the one that set it up.
    fn is_for_all_threads(&self) -> bool;

    /// Starts sending to `message.process`, without waiting.
    fn send(&mut self, message: Message);

    /// Returns a message that has arrived, if there is one; its body may go where `matcher` says.
    ///
    /// # Errors
    /// Why nothing arrives any more.
    fn receive(&mut self, matcher: Matcher) -> Result<Option<Message>, String>;

    /// Goes on sending; returns how many bytes have not left yet: 0 once everything has.
    fn unsent_bytes(&mut self) -> usize;

    /// Returns how many of these bytes wait for the other processes alone: nothing that this one does moves them on.
    fn lent_bytes(&self) -> usize {
        0
    }

    /// Returns whether a message has arrived in part, so that looking for the rest soon is worth it.
    fn is_receiving(&self) -> bool;

    /// Returns a process of which nothing comes any more, and which nothing reaches, once, and how that was seen;
    /// `None` also where the transport cannot tell.
    fn ended(&mut self) -> Option<(u32, String)> {
        None
    }

    /// The number of this process.
    fn process(&self) -> u32;

    /// How many processes there are.
    fn num_processes(&self) -> usize;
}
