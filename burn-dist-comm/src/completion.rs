//! The end of a call, which its members wait for.

use crate::buffer::Work;
use crate::sync::lock;
use crate::{CommError, Payload};
use burn_dist_mesh::Rank;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The work or the values that follow when all members have arrived.
pub(crate) enum Outcome {
    Work(Work),
    Values(Arc<[Payload]>),
}

/// When all members had arrived, and from when to when the call has the wire, if there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) launched: Instant,
    pub(crate) wire: Option<(Instant, Instant)>,
}

/// One call of a group: empty until all members have arrived, then their common outcome.
#[derive(Default)]
pub(crate) struct Completion {
    outcome: OnceLock<(Outcome, Moment)>,
    /// Number of threads that sleep until they are woken. What they wait for is stored before this lock is taken, so
    /// none sleeps through it.
    sleepers: Mutex<usize>,
    changed: Condvar,
    /// Ranks of other processes whose inputs are still to come.
    awaited: Mutex<Vec<Rank>>,
}

/// How long a waiting thread stays awake before it sleeps.
///
/// Waking a thread costs microseconds, as much as a small collective. Spinning helps only if every rank has a core;
/// giving up the core helps also if several ranks share one, because the one that is waited for runs at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) spins: u32,
    pub(crate) yields: u32,
}

/// Why waiting ended without a result.
pub(crate) enum Stop {
    Fault(CommError),
    Late,
}

impl Completion {
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get().map(|(outcome, _)| outcome)
    }

    /// When it was concluded.
    pub(crate) fn moment(&self) -> Option<Moment> {
        self.outcome.get().map(|(_, moment)| *moment)
    }

    /// Publishes the outcome. Only the last member to arrive does.
    pub(crate) fn conclude(&self, outcome: Outcome, moment: Moment) {
        let first = self.outcome.set((outcome, moment)).is_ok();
        assert!(first, "a call has one last member");
        self.wake();
    }

    /// Publishes the work of a call whose inputs have come from other processes.
    pub(crate) fn conclude_work(&self, work: Work) {
        let moment = Moment {
            launched: Instant::now(),
            wire: None,
        };
        self.conclude(Outcome::Work(work), moment);
    }

    /// Notes whose inputs are still to come from other processes.
    pub(crate) fn await_ranks(&self, ranks: Vec<Rank>) {
        *lock(&self.awaited) = ranks;
    }

    /// Returns the ranks of other processes that have not made this call.
    pub(crate) fn awaited(&self) -> Vec<Rank> {
        lock(&self.awaited).clone()
    }

    /// Lets sleepers look again.
    pub(crate) fn wake(&self) {
        if *lock(&self.sleepers) > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until `ready` returns something, a fault is set, or `timeout` has passed.
    pub(crate) fn wait_until<'a, T>(
        &'a self,
        ready: impl Fn(&'a Self) -> Option<T>,
        fault: &OnceLock<CommError>,
        patience: Patience,
        timeout: Duration,
    ) -> Result<T, Stop> {
        for _ in 0..patience.spins {
            if let Some(result) = ready(self) {
                return Ok(result);
            }
            std::hint::spin_loop();
        }
        let started = Instant::now();
        for _ in 0..patience.yields {
            if let Some(result) = ready(self) {
                return Ok(result);
            }
            if fault.get().is_some() {
                break;
            }
            std::thread::yield_now();
        }
        let mut sleepers = lock(&self.sleepers);
        loop {
            if let Some(result) = ready(self) {
                return Ok(result);
            }
            if let Some(fault) = fault.get() {
                return Err(Stop::Fault(fault.clone()));
            }
            let Some(left) = timeout
                .checked_sub(started.elapsed())
                .filter(|left| !left.is_zero())
            else {
                return Err(Stop::Late);
            };
            *sleepers += 1;
            (sleepers, _) = self
                .changed
                .wait_timeout(sleepers, left)
                .unwrap_or_else(PoisonError::into_inner);
            *sleepers -= 1;
        }
    }
}
