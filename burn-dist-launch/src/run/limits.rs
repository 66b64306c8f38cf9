//! How many files may be open: the launcher has several for each process.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use std::io;

/// A limit of open files.
#[derive(Clone, Copy)]
pub(super) struct OpenFiles {
    now: rlim_t,
    most: rlim_t,
}

impl OpenFiles {
    /// Raises the limit of this process as far as it may, and returns what it was.
    ///
    /// # Errors
    /// If the system does not say.
    pub(super) fn raise() -> io::Result<Self> {
        let (now, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        // Some systems have a lower limit than they say. Whatever needs more files than there are fails by name.
        let _ = Self { now: most, most }.set();
        Ok(Self { now, most })
    }

    /// Makes this the limit of this process; may be called between fork and exec.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn set(&self) -> io::Result<()> {
        Ok(setrlimit(Resource::RLIMIT_NOFILE, self.now, self.most)?)
    }
}
