//! Who the other processes are: the first message that each sends.

use super::message::Message;
use crate::sync::{Condvar, Mutex, lock};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of which burn-dist this process is; all processes are of one.
const VERSION: &str = env!("CARGO_PKG_VERSION");

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

    pub(super) fn hello(&self) -> Message {
        Message::Hello {
            pid: self.pid,
            version: VERSION.into(),
            host: self.host.clone(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}, pid {}", self.host, self.pid)
    }
}

/// Who has introduced themselves.
pub(super) struct Introductions {
    state: Mutex<Result<Vec<Option<Arc<Peer>>>, String>>,
    changed: Condvar,
}

impl Introductions {
    pub fn new(num_processes: usize) -> Self {
        Self {
            state: Mutex::new(Ok(vec![None; num_processes])),
            changed: Condvar::new(),
        }
    }

    /// Notes what `process` says of itself.
    pub fn hello(&self, process: u32, peer: Peer, version: &str) {
        let mut state = lock(&self.state);
        if let Ok(met) = &mut *state {
            if version == VERSION {
                met[process as usize] = Some(Arc::new(peer));
            } else {
                *state = Err(format!(
                    "process {process} ({peer}) runs burn-dist {version}, this one {VERSION}: build and start the same \
                     program everywhere"
                ));
            }
        }
        self.changed.notify_all();
    }

    /// Ends the wait of those who wait.
    pub fn fail(&self, reason: &str) {
        let mut state = lock(&self.state);
        if state.is_ok() {
            *state = Err(reason.to_string());
        }
        self.changed.notify_all();
    }

    /// Returns all processes, once each has introduced itself.
    ///
    /// # Errors
    /// Who is of another version, or has not been heard of in time.
    pub fn wait(&self, timeout: Duration) -> Result<Arc<[Arc<Peer>]>, String> {
        let start = Instant::now();
        let mut state = lock(&self.state);
        loop {
            let met = state.as_ref().map_err(String::clone)?;
            if let Some(all) = met.iter().cloned().collect::<Option<Vec<_>>>() {
                return Ok(all.into());
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let silent = met.iter().enumerate().filter(|(_, peer)| peer.is_none());
                let silent: Vec<_> = silent.map(|(process, _)| process.to_string()).collect();
                return Err(format!(
                    "no word from process {} in {:.0} s: is it running?",
                    silent.join(", "),
                    timeout.as_secs_f64()
                ));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: u32) -> Peer {
        Peer {
            host: "node7".into(),
            pid,
        }
    }

    #[test]
    fn all_are_known_once_all_have_spoken() {
        let introductions = Introductions::new(2);
        introductions.hello(1, peer(11), VERSION);
        let text = introductions.wait(Duration::ZERO).unwrap_err();
        assert!(text.contains("process 0 "), "{text}");
        introductions.hello(0, peer(10), VERSION);
        let all = introductions.wait(Duration::ZERO).unwrap();
        assert_eq!(all[1].to_string(), "host node7, pid 11");
    }

    #[test]
    fn another_version_is_named() {
        let introductions = Introductions::new(2);
        introductions.hello(1, peer(11), "0.0.7");
        introductions.hello(0, peer(10), VERSION);
        let text = introductions.wait(Duration::ZERO).unwrap_err();
        for part in ["process 1", "node7", "0.0.7", VERSION] {
            assert!(text.contains(part), "{text}");
        }
    }
}
