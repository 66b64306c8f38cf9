//! A time for all of a conversation.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Instant;

/// Reads from a connection until a moment, whatever comes meanwhile: a time-out of each read would be no bound, since
/// one byte now and then starts it anew.
///
/// Leaves a read time-out behind, which the next reader sets as it likes.
///
/// # Errors
/// `TimedOut` or `WouldBlock` when the time is over.
pub(crate) struct Until<'a>(pub &'a TcpStream, pub Instant);

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(into)
    }
}
