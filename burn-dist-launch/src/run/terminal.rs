//! A terminal of its own for process 0: what it draws reaches the person's terminal unchanged, and can be kept on the
//! as it passes.

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::openpty;
use nix::sys::termios::{OutputFlags, SetArg, tcgetattr, tcsetattr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

nix::ioctl_read_bad!(window_size, nix::libc::TIOCGWINSZ, nix::libc::winsize);
nix::ioctl_write_ptr_bad!(set_window_size, nix::libc::TIOCSWINSZ, nix::libc::winsize);

/// The launcher's end of a terminal.
pub(super) struct Terminal(OwnedFd);

impl Terminal {
    /// Returns a terminal that is as wide as the one behind `like`, and the end for the process.
    ///
    /// # Errors
    /// If the system has no more.
    pub(super) fn open(like: BorrowedFd<'_>) -> io::Result<(Self, OwnedFd)> {
        let pair = openpty(size_of(like).as_ref(), None)?;
        // Whatever else is started would hold it open.
        for end in [&pair.master, &pair.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        // Line ends are made into what a terminal needs once: by the terminal of the person.
        let mut settings = tcgetattr(&pair.slave)?;
        settings.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&pair.slave, SetArg::TCSANOW, &settings)?;
        Ok((Self(pair.master), pair.slave))
    }

    /// Returns what reads what the process writes.
    ///
    /// # Errors
    /// If the system has no more files.
    pub(super) fn reader(&self) -> io::Result<File> {
        Ok(File::from(self.0.try_clone()?))
    }

    /// Makes it as wide as the terminal behind `like`.
    pub(super) fn resize(&self, like: BorrowedFd<'_>) {
        if let Some(size) = size_of(like) {
            // SAFETY: the descriptor is open, and the size lives through the call.
            let _ = unsafe { set_window_size(self.0.as_fd().as_raw_fd(), &size) };
        }
    }
}

fn size_of(terminal: BorrowedFd<'_>) -> Option<nix::libc::winsize> {
    let mut size = nix::libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the descriptor is open, and the size is written to a place of its type.
    unsafe { window_size(terminal.as_raw_fd(), &mut size) }.ok()?;
    Some(size)
}
