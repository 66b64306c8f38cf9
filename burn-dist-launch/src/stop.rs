//! Being asked to stop: by a person (SIGINT, Ctrl-C), or by what has started the program (SIGTERM: Slurm, Kubernetes,
//! systemd, `burn-dist run`).

use burn_dist_comm::{CommError, Votes};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Signals that come closer together are one: a launcher passes on what the system has sent to the program too.
const GAP: Duration = Duration::from_secs(1);

/// The signals that ask a program to stop.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Knows if a signal has asked this program to stop, with time to save what it has.
///
/// The program looks when it can stop, after a step say, saves, and ends with [`Stop::exit_code`]. A second signal, at
/// least [`GAP`] after the first, ends it at once, with the same code. Nothing else hurries it, but whoever has sent
/// SIGTERM sends SIGKILL some time later: what that time is, is theirs to say (Slurm: `KillWait`, or earlier with
/// `--signal=TERM@SECONDS`; Kubernetes: `terminationGracePeriodSeconds`; systemd: `TimeoutStopSec`).
///
/// ```
/// let stop = burn_dist_launch::Stop::on_signals()?;
/// for step in 1..=3 {
///     // Several processes hear of it at different steps, or one alone does: they ask `stop.agree(&votes)?` instead.
///     if stop.is_asked() {
///         break;
///     }
/// }
/// assert_eq!(stop.exit_code(), None, "nobody has asked");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stop(Arc<Asked>);

#[derive(Debug)]
struct Asked {
    /// The first signal; 0 before.
    signal: AtomicI32,
    /// When that came; the far future before.
    at_ms: AtomicU64,
    /// The code that all processes end with, once they have agreed on one; 0 before.
    agreed: AtomicU8,
}

impl Asked {
    fn new() -> Self {
        Self {
            signal: AtomicI32::new(0),
            at_ms: AtomicU64::new(u64::MAX),
            agreed: AtomicU8::new(0),
        }
    }

    /// Notes a signal; returns the code to end with at once, if it is to.
    fn hear(&self, signal: i32, now_ms: u64) -> Option<i32> {
        let (before, after) = (Ordering::SeqCst, Ordering::SeqCst);
        match self.signal.compare_exchange(0, signal, before, after) {
            Ok(_) => {
                self.at_ms.store(now_ms, Ordering::SeqCst);
                None
            }
            Err(first) => {
                let since = now_ms.saturating_sub(self.at_ms.load(Ordering::SeqCst));
                (u128::from(since) >= GAP.as_millis()).then_some(128 + first)
            }
        }
    }
}

impl Stop {
    /// Listens for SIGINT and SIGTERM from now on. Each call has an own answer; a program makes one.
    ///
    /// # Errors
    /// The system's.
    pub fn on_signals() -> std::io::Result<Self> {
        let stop = Self::new();
        let start = Instant::now();
        for signal in SIGNALS {
            let asked = Arc::clone(&stop.0);
            let hear = move || {
                // Well within 64 bits.
                let now_ms = start.elapsed().as_millis() as u64;
                if let Some(code) = asked.hear(signal, now_ms) {
                    signal_hook::low_level::exit(code);
                }
            };
            // SAFETY: the function reads a clock, touches atomics, and may end the program without running anything:
            // all of that may be done while a thread is interrupted.
            unsafe { signal_hook::low_level::register(signal, hear) }?;
        }
        Ok(stop)
    }

    /// Returns one that no signal reaches.
    pub fn new() -> Self {
        Self(Arc::new(Asked::new()))
    }

    /// Asks, as SIGINT does.
    pub fn ask(&self) {
        self.0.hear(SIGINT, 0);
    }

    /// Returns true if a signal has asked.
    pub fn is_asked(&self) -> bool {
        self.exit_code().is_some()
    }

    /// Returns true if a signal has asked any of the processes: all of them stop then, and end with the same code, also
    /// those that no signal has reached. Where it was SIGINT here and SIGTERM there, that is SIGTERM's.
    ///
    /// # Communication
    /// Waits for the others; one byte.
    /// # Errors
    /// If one of them is late or has left.
    pub fn agree(&self, votes: &Votes) -> Result<bool, CommError> {
        let code = votes.most(self.exit_code().unwrap_or(0))?;
        // No signal: one that comes later is the first here, and hurries nothing.
        self.0.agreed.store(code, Ordering::SeqCst);
        Ok(code != 0)
    }

    /// Returns what the program is to end with, as shells report signals, if one has asked: 130 for SIGINT, 143 for
    /// SIGTERM; what all processes have [agreed](Self::agree) on, if they have.
    pub fn exit_code(&self) -> Option<u8> {
        let agreed = self.0.agreed.load(Ordering::SeqCst);
        match (agreed, self.0.signal.load(Ordering::SeqCst)) {
            (0, 0) => None,
            (0, signal) => u8::try_from(128 + signal).ok(),
            (agreed, _) => Some(agreed),
        }
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_are_one_and_a_later_one_ends_at_once() {
        for first in SIGNALS {
            for second in SIGNALS {
                let asked = Asked::new();
                let hear = |signal, now_ms| asked.hear(signal, now_ms);
                // (when, what follows)
                assert_eq!(hear(first, 5000), None);
                assert_eq!(hear(second, 5000), None);
                assert_eq!(hear(second, 5999), None);
                assert_eq!(hear(second, 6000), Some(128 + first));
                // One that interrupts the first before it has noted its time belongs to it.
                asked.at_ms.store(u64::MAX, Ordering::SeqCst);
                assert_eq!(hear(second, 9000), None);
            }
        }
    }

    #[test]
    fn each_signal_is_heard_and_has_its_code() {
        for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
            let stop = Stop::on_signals().unwrap();
            assert!(!stop.is_asked());
            signal_hook::low_level::raise(signal).unwrap();
            assert_eq!(stop.exit_code(), Some(code));
        }
        let stop = Stop::new();
        stop.ask();
        assert_eq!(stop.exit_code(), Some(130));
    }

    #[test]
    fn all_processes_end_with_the_code_of_the_signal_that_reached_one() {
        // (the signal of each process, the code of all)
        for (signals, code) in [
            ([0, SIGTERM], Some(143)),
            ([SIGTERM, 0], Some(143)),
            ([0, SIGINT], Some(130)),
            ([SIGINT, SIGTERM], Some(143)),
            ([0, 0], None),
        ] {
            let worlds = burn_dist_comm::World::simulated(2);
            let found: Vec<_> = std::thread::scope(|scope| {
                let run = |world: burn_dist_comm::World, signal: i32| {
                    let (votes, stop) = (world.votes().unwrap(), Stop::new());
                    if signal != 0 {
                        stop.0.hear(signal, 0);
                    }
                    let is_asked = stop.agree(&votes).unwrap();
                    // What the launcher passes on later is the first signal of a process that had none.
                    let hurried = (signal == 0).then(|| stop.0.hear(SIGTERM, 5000)).flatten();
                    (is_asked, stop.exit_code().filter(|_| is_asked), hurried)
                };
                let threads = worlds.into_iter().zip(signals);
                let threads: Vec<_> = threads
                    .map(|(world, signal)| scope.spawn(move || run(world, signal)))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            let expected = (code.is_some(), code, None);
            assert_eq!(found, [expected, expected], "{signals:?}");
        }
    }
}
