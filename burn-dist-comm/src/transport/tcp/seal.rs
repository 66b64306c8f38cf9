//! Records that only the other end of a connection can read.

/// Makes records of what is sent, which only the other end can read.
pub trait Sealing: Send {
    /// Appends records that hold `content`.
    ///
    /// # Errors
    /// Why it cannot be sealed.
    fn append(&mut self, content: &[u8], records: &mut Vec<u8>) -> std::io::Result<()>;
}

/// Reads the records of the other end's [`Sealing`].
pub trait Opening: Send {
    /// Takes whole records off the front of what has come, and appends their content.
    ///
    /// # Errors
    /// Somebody else has sealed them, or changed, left out, repeated or moved one.
    fn take(&mut self, records: &mut Vec<u8>, content: &mut Vec<u8>) -> std::io::Result<()>;
}
