//! Which processes of this machine have ended, as the kernel tells: messages between processes of one machine are lost
//! without a trace.
//!
//! Processes on other machines are not watched: their launcher, or a time-out, tells of their end.

use super::peer::Peer;
use std::time::{Duration, Instant};

/// How often the kernel is asked.
const LOOK: Duration = Duration::from_millis(50);

/// The processes of this machine.
pub(super) struct Watch {
    host: String,
    watched: Vec<(u32, kernel::Handle)>,
    next_look: Instant,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            host: Peer::this().host,
            watched: Vec::new(),
            next_look: Instant::now(),
        }
    }

    /// Watches a process, if it is another one of this machine and the kernel can tell.
    pub(super) fn add(&mut self, process: u32, peer: &Peer) {
        if peer.host == self.host
            && peer.pid != std::process::id()
            && runs_this_program(peer.pid)
            && let Some(handle) = kernel::Handle::new(peer.pid)
        {
            self.watched.push((process, handle));
        }
    }

    /// Returns whether there is anyone to watch.
    pub(super) fn is_watching(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Returns a process that has ended, once.
    pub(super) fn look(&mut self, now: Instant) -> Option<u32> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK;
        let mut ended = None;
        self.watched.retain(|(process, handle)| {
            let is_next = ended.is_none() && handle.has_ended();
            if is_next {
                ended = Some(*process);
            }
            !is_next
        });
        ended
    }
}

/// Returns whether a process is what it says: numbers of another container mean others here.
fn runs_this_program(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    program("self").is_some_and(|this| program(&pid.to_string()) == Some(this))
}

#[cfg(all(any(feature = "mpi", feature = "tcp"), target_os = "linux"))]
mod kernel {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::fd::OwnedFd;

    /// A process, whatever becomes of its number.
    pub(super) struct Handle(OwnedFd);

    impl Handle {
        /// `None` if the kernel is older than Linux 5.3, or the process is in another namespace.
        pub(super) fn new(pid: u32) -> Option<Self> {
            let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
            pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
        }

        pub(super) fn has_ended(&self) -> bool {
            const NO_WAIT: Timespec = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let mut handles = [PollFd::new(&self.0, PollFlags::IN)];
            let polled = poll(&mut handles, Some(&NO_WAIT));
            polled.is_ok() && handles[0].revents().contains(PollFlags::IN)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::process::Command;

        #[test]
        fn the_end_of_a_process_is_seen() {
            let mut child = Command::new("sleep")
                .arg("60")
                .spawn()
                .expect("sleep is installed");
            let handle = Handle::new(child.id()).expect("a kernel that knows process handles");
            assert!(!handle.has_ended());
            child.kill().expect("it runs");
            // Also before anyone has asked how it ended.
            let start = std::time::Instant::now();
            while !handle.has_ended() {
                assert!(start.elapsed().as_secs() < 10);
                std::thread::yield_now();
            }
            child.wait().expect("it has ended");
            assert!(Handle::new(child.id()).is_none());
        }
    }
}

#[cfg(not(all(any(feature = "mpi", feature = "tcp"), target_os = "linux")))]
mod kernel {
    /// There is none: only processes over MPI and TCP are real ones, and only Linux tells.
    pub(super) enum Handle {}

    impl Handle {
        pub(super) fn new(_pid: u32) -> Option<Self> {
            None
        }

        pub(super) fn has_ended(&self) -> bool {
            match *self {}
        }
    }
}
