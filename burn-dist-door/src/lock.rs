//! The lock under which calls are recorded: the thread that holds it may take it again.
//!
//! `parking_lot`'s own gives up its turn on the core before it sleeps. Where more threads work than there are cores, as
//! beside data loaders, the core then goes to one of the others for milliseconds, for a lock that is held for less than
//! one microsecond. A thread that sleeps is woken as soon as the lock is free, and the system lets it run at once.

use std::hint::spin_loop;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use parking_lot::RawThreadId;
use parking_lot::lock_api::{self, GuardNoSend};
use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, UnparkResult, park, unpark_one};

pub(crate) type Lock<T> = lock_api::ReentrantMutex<RawLock, RawThreadId, T>;
pub(crate) type Locked<'a, T> = lock_api::ReentrantMutexGuard<'a, RawLock, RawThreadId, T>;

/// Set while a thread holds the lock.
const HELD: u8 = 1;
/// Set while threads sleep for it.
const AWAITED: u8 = 2;

/// How often a thread looks whether the lock is free before it sleeps: some microseconds, in which a batch is joined or
/// a log is taken apart. Most calls hold it for less than one.
const LOOKS: usize = 1000;

pub(crate) struct RawLock(AtomicU8);

impl RawLock {
    /// Threads sleep under this number.
    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Sets the state to `to` if it is `from`, or at times not even then; returns whether it did.
    #[inline]
    fn change(&self, from: u8, to: u8) -> bool {
        let changed = self.0.compare_exchange_weak(from, to, Acquire, Relaxed);
        changed.is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        loop {
            let state = self.0.load(Relaxed);
            if state & HELD == 0 {
                if self.change(state, state | HELD) {
                    return;
                }
                continue;
            }
            if state & AWAITED == 0 {
                if looks < LOOKS {
                    looks += 1;
                    spin_loop();
                    continue;
                }
                if !self.change(state, state | AWAITED) {
                    continue;
                }
            }
            let is_held = || self.0.load(Relaxed) == HELD | AWAITED;
            let (key, token) = (self.key(), DEFAULT_PARK_TOKEN);
            // SAFETY: the key is an address of this lock, and the closures neither panic nor park.
            unsafe { park(key, is_held, || {}, |_, _| {}, token, None) };
            looks = 0;
        }
    }

    #[cold]
    fn wake(&self) {
        let release = |result: UnparkResult| {
            let rest = if result.have_more_threads { AWAITED } else { 0 };
            self.0.store(rest, Release);
            DEFAULT_UNPARK_TOKEN
        };
        // SAFETY: the key is an address of this lock, and the closure neither panics nor parks.
        unsafe { unpark_one(self.key(), release) };
    }
}

// SAFETY: `HELD` is set by one thread at a time, with `Acquire`, and cleared by that one, with `Release`. While
// `AWAITED` is set, it is cleared under the queue's lock of those that sleep, which `is_held` is asked under too.
unsafe impl lock_api::RawMutex for RawLock {
    const INIT: Self = Self(AtomicU8::new(0));
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.change(0, HELD) {
            self.wait();
        }
    }

    fn try_lock(&self) -> bool {
        let take = |state| (state & HELD == 0).then_some(state | HELD);
        self.0.fetch_update(Acquire, Relaxed, take).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        let released = self.0.compare_exchange(HELD, 0, Release, Relaxed);
        if released.is_err() {
            self.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;

    #[test]
    fn one_thread_at_a_time_holds_it_however_many_wait() {
        let lock = Lock::new(Cell::new(0_u64));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let outer = lock.lock();
                        let inner = lock.lock();
                        let seen = inner.get();
                        if (round + thread) % 997 == 0 {
                            // Others look in vain, and sleep.
                            std::thread::sleep(Duration::from_micros(200));
                        }
                        inner.set(seen + 1);
                        drop(outer);
                        assert_eq!(inner.get(), seen + 1, "it is held until the last guard");
                    }
                });
            }
        });
        assert_eq!(lock.into_inner().get(), 120_000);
    }

    #[test]
    fn who_sleeps_is_woken() {
        let lock = Lock::new(());
        let held = lock.lock();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| drop(lock.lock()))).collect();
            while lock_is(&lock) != HELD | AWAITED {
                std::thread::yield_now();
            }
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            drop(held);
        });
        assert_eq!(lock_is(&lock), 0);
        assert!(lock.try_lock().is_some());
    }

    fn lock_is(lock: &Lock<()>) -> u8 {
        // SAFETY: the state is looked at, and the lock is neither taken nor released.
        let raw = unsafe { lock.raw() };
        raw.0.load(Relaxed)
    }
}
