//! The identity of a process.

use std::fmt;

/// A process, as people find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of its machine.
    pub host: String,
    /// Its number there.
    pub pid: u32,
}

impl Peer {
    /// Returns this process.
    pub fn this() -> Self {
        Self {
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            pid: std::process::id(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}, pid {}", self.host, self.pid)
    }
}
