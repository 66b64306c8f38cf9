//! Events, one after the other: signals, words of supervisors, ends.

use super::signals::not_ignored;
use super::supervisor::{self, Word};
use crate::rendezvous::RendezvousError;
use nix::libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// Something that happened.
pub(super) enum What {
    Signal(i32),
    /// The supervisor of a process of this machine has come.
    Connected(usize, UnixStream),
    Word(usize, Word),
    /// A supervisor has closed its connection.
    Gone(usize),
    /// A starter of processes (of one of them, or all) has ended.
    StarterEnded(usize, ExitStatus),
    /// Something has happened elsewhere because of which these processes cannot go on.
    Trouble,
    /// The launchers of other machines cannot be reached.
    Unmet(RendezvousError),
    /// The processes of all machines have ended well.
    AllDone,
    /// All output has been passed on.
    Drained,
    /// A word of the launcher's own has been shown.
    Said,
}

/// Returns true if a signal asks for the end.
pub(super) fn is_interrupt(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM | SIGHUP)
}

/// All that happens, and in which start.
pub(super) struct Events {
    sender: Sender<(u32, What)>,
    receiver: Receiver<(u32, What)>,
}

/// Tells of what happens in one start.
#[derive(Clone)]
pub(super) struct Teller {
    sender: Sender<(u32, What)>,
    start: u32,
}

impl Teller {
    pub(super) fn tell(&self, what: What) {
        // The launcher may have left.
        let _ = self.sender.send((self.start, what));
    }
}

impl Events {
    /// Starts to catch the signals that this process does not ignore.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn catch() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let mut signals = Signals::new(not_ignored([
            SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH,
        ]))?;
        let events = Self { sender, receiver };
        let teller = events.teller(0);
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || {
            for signal in signals.forever() {
                teller.tell(What::Signal(signal));
            }
        })?;
        Ok(events)
    }

    pub(super) fn teller(&self, start: u32) -> Teller {
        Teller {
            sender: self.sender.clone(),
            start,
        }
    }

    /// Returns what happens next in start `start`, or a signal; `None` if nothing does until then.
    pub(super) fn next(&self, start: u32, until: Option<Instant>) -> Option<What> {
        loop {
            let (of, what) = match until {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.receiver.recv_timeout(left).ok()?
                }
                None => self.receiver.recv().ok()?,
            };
            match what {
                What::Signal(_) => return Some(what),
                _ if of == start => return Some(what),
                // It came too late, and would wait for ever.
                What::Connected(_, late) => supervisor::dismiss(&late),
                _ => {}
            }
        }
    }

    /// Waits for what `is_awaited` names, or until then; returns the signal that asks for the end before that.
    /// Supervisors that still come are sent away.
    pub(super) fn wait(
        &self,
        start: u32,
        until: Option<Instant>,
        is_awaited: impl Fn(&What) -> bool,
    ) -> Option<i32> {
        loop {
            match self.next(start, until)? {
                What::Signal(signal) if is_interrupt(signal) => return Some(signal),
                What::Connected(_, late) => supervisor::dismiss(&late),
                what if is_awaited(&what) => return None,
                _ => {}
            }
        }
    }
}
