//! Windows between a program and the ranks: those to be planned, and how far the program may be ahead.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Plans windows.
type Plans = Box<dyn Fn() + Send + Sync>;

/// The windows that ranks were handed and have not finished, bounded by the bytes that they keep on the host.
///
/// A program that never reads would otherwise keep the data of all its steps. A full queue blocks the thread that
/// records, outside the recorder's lock. There it also plans the windows that have ended: others record meanwhile.
pub struct Queue {
    bytes_max: u64,
    timeout: Duration,
    load: Mutex<Load>,
    room: Condvar,
    /// Tasks for a thread once it has no lock: [`FULL`] and [`ENDED`].
    due: AtomicU8,
    plans: OnceLock<Plans>,
}

/// Set while `load` is over the limit.
const FULL: u8 = 1;
/// Set when a window has ended, until a thread goes to plan it.
const ENDED: u8 = 2;

#[derive(Clone, Copy, Default)]
struct Load {
    windows: u64,
    bytes: u64,
    finished: u64,
}

/// Windows in flight, whatever their size: a few keep the ranks busy, and each of them takes some kilobytes.
const WINDOWS_MAX: u64 = 64;

impl Load {
    /// One window may be of any size.
    fn is_over(&self, bytes_max: u64) -> bool {
        self.windows > 1 && (self.bytes > bytes_max || self.windows > WINDOWS_MAX)
    }
}

/// A window in flight; it has ended once all ranks have dropped it.
pub struct InFlight {
    queue: Arc<Queue>,
    bytes: u64,
}

impl Queue {
    /// A queue of windows that keep at most `bytes_max` together. Whoever waits for room goes on after `timeout`
    /// without any progress.
    pub fn new(bytes_max: u64, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            timeout,
            load: Mutex::default(),
            room: Condvar::new(),
            due: AtomicU8::new(0),
            plans: OnceLock::new(),
        })
    }

    /// Says what plans windows that have ended.
    ///
    /// # Panics
    /// If something does already.
    pub fn set_plans(&self, plans: impl Fn() + Send + Sync + 'static) {
        let is_first = self.plans.set(Box::new(plans)).is_ok();
        assert!(is_first, "a mesh has one planner");
    }

    /// Notes that a window has ended, to be planned once the thread that ended it has left the recorder's lock.
    pub fn window_ended(&self) {
        self.due.fetch_or(ENDED, Ordering::Relaxed);
    }

    /// Adds a window that keeps `bytes` on the host.
    pub fn enter(self: &Arc<Self>, bytes: u64) -> Arc<InFlight> {
        let mut load = self.lock();
        load.windows += 1;
        load.bytes += bytes;
        self.note(&load);
        Arc::new(InFlight {
            queue: self.clone(),
            bytes,
        })
    }

    fn note(&self, load: &Load) {
        match load.is_over(self.bytes_max) {
            true => self.due.fetch_or(FULL, Ordering::Relaxed),
            false => self.due.fetch_and(!FULL, Ordering::Relaxed),
        };
    }

    /// Returns whether there is something to do for a thread that has no lock: windows to [plan](Self::plan), or to
    /// [wait](Self::wait).
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    /// Plans windows that have ended.
    pub fn plan(&self) {
        let due = self.due.fetch_and(!ENDED, Ordering::Relaxed);
        if due & ENDED != 0
            && let Some(plans) = self.plans.get()
        {
            plans();
        }
    }

    /// Waits until there is room, or nothing has moved for as long as a rank waits for the others: then ranks are stuck
    /// or very slow. Their own time-out names the first case; in the second one the program goes on, with more memory.
    pub fn wait(&self) {
        if self.due.load(Ordering::Relaxed) & FULL == 0 {
            return;
        }
        let mut load = self.lock();
        while load.is_over(self.bytes_max) {
            let finished = load.finished;
            let waited = self.room.wait_timeout(load, self.timeout);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            load = now;
            if timeout.timed_out() && load.finished == finished {
                tracing::warn!(
                    target: "burn_dist",
                    windows = load.windows,
                    bytes = load.bytes,
                    "the ranks have finished no window for {:?}: recording goes on ahead of them",
                    self.timeout
                );
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let queue = &self.queue;
        let mut load = queue.lock();
        load.windows -= 1;
        load.bytes -= self.bytes;
        load.finished += 1;
        queue.note(&load);
        drop(load);
        queue.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(bytes_max: u64, millis: u64) -> Arc<Queue> {
        Queue::new(bytes_max, Duration::from_millis(millis))
    }

    #[test]
    fn one_window_may_be_of_any_size_and_two_share_the_limit() {
        let queue = queue(100, 10_000);
        let large = queue.enter(1_000);
        assert!(!queue.is_due());
        let small = queue.enter(1);
        assert!(queue.is_due());
        drop(large);
        assert!(!queue.is_due());
        let rest: Vec<_> = (0..99).map(|_| queue.enter(1)).collect();
        assert!(queue.is_due(), "{WINDOWS_MAX} windows at most");
        drop((small, rest));
        assert!(!queue.is_due());
    }

    #[test]
    fn who_waits_goes_on_when_a_window_ends() {
        let queue = queue(10, 60_000);
        let (first, second) = (queue.enter(8), queue.enter(8));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.wait());
            drop(first);
            waiting.join().expect("no panic");
        });
        assert!(!queue.is_due());
        drop(second);
    }

    #[test]
    fn a_window_that_has_ended_is_planned_once() {
        let queue = queue(100, 1);
        let planned = Arc::new(AtomicU8::new(0));
        let count = planned.clone();
        queue.set_plans(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!queue.is_due());
        queue.window_ended();
        assert!(queue.is_due());
        queue.plan();
        queue.plan();
        assert!(!queue.is_due());
        assert_eq!(planned.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_waits_for_ranks_that_do_nothing_goes_on_after_the_time_out() {
        let queue = queue(10, 1);
        let windows = (queue.enter(8), queue.enter(8));
        queue.wait();
        assert!(queue.is_due(), "nothing was discarded");
        drop(windows);
    }
}
