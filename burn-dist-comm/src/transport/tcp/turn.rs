//! A turn of a connection: how much is moved at once, and why nothing is any more.

/// Bytes that are sent, or received, of one connection before the others, and the other direction, have their turn:
/// what a cache holds.
pub(super) const TURN_BYTES_MAX: usize = 1 << 20;

/// Why a connection is of no use any more.
#[derive(Debug)]
pub(super) enum Broken {
    /// It has ended, as the system says.
    Ended(String),
    /// These bytes are no message.
    Malformed(String),
}
