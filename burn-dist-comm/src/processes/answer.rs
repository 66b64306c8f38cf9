//! Answers that the engine finds for a thread that waits.

use crate::sync::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A state that the engine sets, and that other threads wait for.
#[derive(Debug, Default)]
pub(crate) struct Answer<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Answer<T> {
    /// Sets the state; whoever waits looks again.
    pub(crate) fn set(&self, state: T) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    /// Returns what `look` finds in the state now.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&lock(&self.state))
    }

    /// Waits until `look` finds something in the state, at most for `timeout`; looks from time to time also if the
    /// state does not change.
    pub(crate) fn wait<R>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&T) -> Option<R>,
    ) -> Option<R> {
        /// An answer that `look` finds elsewhere wakes nobody here.
        const LOOK: Duration = Duration::from_millis(5);
        let start = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = look(&state) {
                return Some(found);
            }
            if start.elapsed() > timeout {
                return None;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_learns_what_changes_here_and_elsewhere() {
        let answer = Answer::<u32>::default();
        assert_eq!(answer.wait(Duration::ZERO, |_| None::<u32>), None);
        let patience = Duration::from_secs(20);
        std::thread::scope(|scope| {
            let waits = || answer.wait(patience, |state| (*state == 2).then_some(*state));
            let waiting = scope.spawn(waits);
            answer.set(1);
            answer.set(2);
            assert_eq!(waiting.join().expect("no panic"), Some(2));
        });
        let mut looks = 0;
        let elsewhere = |_: &u32| {
            looks += 1;
            (looks == 3).then_some(())
        };
        assert_eq!(answer.wait(patience, elsewhere), Some(()));
    }
}
