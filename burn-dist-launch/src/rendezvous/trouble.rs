//! Why processes cannot go on together.

use super::message::Member;
use std::fmt;

/// A process or a launcher that has vanished without a goodbye.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Which; `None` for the launcher that keeps the rendezvous.
    pub member: Option<Member>,
    /// How that was seen.
    pub reason: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.member {
            Some(member) => write!(f, "{member} has vanished: {}", self.reason),
            None => write!(
                f,
                "the launcher, which keeps the rendezvous, has vanished: {}",
                self.reason
            ),
        }
    }
}

/// Why the processes cannot go on together, in the words of one of them or of a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The one that failed, and of what.
    pub reason: String,
    /// The exit code of what failed, for whoever ends because of it.
    pub exit_code: u8,
}

/// News that end what the processes do together.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    Lost(Lost),
    Failed(Failure),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(lost) => write!(f, "{lost}"),
            Self::Failed(failure) => f.write_str(&failure.reason),
        }
    }
}
