//! How many files may be open: the launcher has several for each process.

use nix::libc::{RLIMIT_NOFILE, getrlimit, rlimit, setrlimit};
use std::io;

/// A limit of open files.
#[derive(Clone, Copy)]
pub(super) struct OpenFiles(rlimit);

impl OpenFiles {
    /// Raises the limit of this process as far as it may, and returns what it was.
    ///
    /// # Errors
    /// If the system does not say.
    pub(super) fn raise() -> io::Result<Self> {
        let mut limit = rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: a system call that writes to a place of its type.
        if unsafe { getrlimit(RLIMIT_NOFILE, &mut limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let before = Self(limit);
        limit.rlim_cur = limit.rlim_max;
        // Some systems have a lower limit than they say. Whatever needs more files than there are fails by name.
        let _ = Self(limit).set();
        Ok(before)
    }

    /// Makes this the limit of this process; may be called between fork and exec.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn set(&self) -> io::Result<()> {
        // SAFETY: a system call that reads from a place of its type.
        match unsafe { setrlimit(RLIMIT_NOFILE, &self.0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
