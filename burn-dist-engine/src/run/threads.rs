//! The threads of one rank: a pool of its own, whose other threads stay awake while the rank works.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::Yield;

use crate::mesh::Rank;

/// For how long a thread without work looks for some and does nothing else.
const SPIN: Duration = Duration::from_micros(20);
/// For how long it lets others run in between, before it sleeps in between: longer than most pauses between kernels that
/// threads share, and short where a rank has only small ones, beside the thread that records.
const YIELD: Duration = Duration::from_micros(150);
/// For how long it sleeps then.
const NAP: Duration = Duration::from_micros(50);
/// After which time without work it sleeps longer.
const QUIET: Duration = Duration::from_millis(2);
/// For how long it sleeps then.
const LONG_NAP: Duration = Duration::from_micros(200);
/// For how long it looks for work after the rank has ended a job.
const LINGER: Duration = Duration::from_micros(200);

const IDLE: u8 = 0;
const WORKS: u8 = 1;
const CLOSED: u8 = 2;

/// The state of a rank, as the other threads of its pool see it.
///
/// A thread of rayon that finds nothing to do sleeps after some microseconds, and waking it for the next kernel takes
/// longer than many kernels do. While the rank works, its threads look for parts of kernels all the time instead.
#[derive(Default)]
struct Watch {
    state: AtomicU8,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Watch {
    fn set(&self, state: u8) {
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.store(state, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits while the rank does nothing. Returns whether it goes on.
    fn wait(&self) -> bool {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |_: &mut ()| self.state.load(Ordering::Acquire) == IDLE;
        let _lock = self.changed.wait_while(lock, idle);
        self.state.load(Ordering::Acquire) == WORKS
    }

    /// Takes parts of kernels until the rank is closed.
    fn help(&self) {
        while self.wait() {
            let mut idle = Instant::now();
            loop {
                if rayon::yield_now() == Some(Yield::Executed) {
                    idle = Instant::now();
                    continue;
                }
                let (state, idle) = (self.state.load(Ordering::Acquire), idle.elapsed());
                if state == CLOSED || (state == IDLE && idle > LINGER) {
                    break;
                }
                if idle < SPIN {
                    std::hint::spin_loop();
                } else if idle < YIELD {
                    std::thread::yield_now();
                } else if idle < QUIET {
                    std::thread::sleep(NAP);
                } else {
                    std::thread::sleep(LONG_NAP);
                }
            }
        }
    }
}

/// The threads of a rank, seen from the one that leads them.
#[derive(Default)]
pub(super) struct Threads {
    watch: Option<Arc<Watch>>,
}

impl Threads {
    /// Makes the other threads of the current pool watch this one, if it has one of its own. They start before this one
    /// goes on: one that began to watch while it waits for a part of a kernel would never end that part.
    pub(super) fn lead() -> Self {
        let threads = rayon::current_num_threads();
        let Some(leader) = rayon::current_thread_index().filter(|_| threads > 1) else {
            return Self::default();
        };
        let watch = Arc::new(Watch::default());
        let started = Arc::new(Barrier::new(threads));
        let helper = (watch.clone(), started.clone());
        rayon::spawn_broadcast(move |context| {
            let (watch, started) = &helper;
            if context.index() != leader {
                started.wait();
                watch.help();
            }
        });
        started.wait();
        Self { watch: Some(watch) }
    }

    /// Does work with all threads.
    pub(super) fn work<R>(&self, work: impl FnOnce() -> R) -> R {
        let Some(watch) = &self.watch else {
            return work();
        };
        watch.set(WORKS);
        let result = work();
        watch.set(IDLE);
        result
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.set(CLOSED);
        }
    }
}

/// Does the work of a rank in a thread pool of `threads` threads of its own (this one included), so that the kernels of
/// one rank never wait in line behind another rank's.
pub(super) fn in_own_pool(rank: Rank, threads: usize, work: impl FnOnce() + Send + 'static) {
    // Rayon never frees a pool that a thread is made part of: here it is one of those that the pool starts.
    let mut this = None;
    let start = |thread: rayon::ThreadBuilder| {
        match &this {
            None => this = Some(thread),
            Some(_) => drop(std::thread::Builder::new().spawn(|| thread.run())?),
        }
        Ok(())
    };
    // As in any thread, a panic ends what has panicked; it has been told by then.
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .panic_handler(drop)
        .spawn_handler(start)
        .build();
    match (pool, this) {
        (Ok(pool), Some(this)) => {
            pool.spawn(work);
            // It ends with the work.
            drop(pool);
            this.run();
        }
        (pool, _) => {
            let error = pool.err();
            tracing::warn!(
                rank = rank.0,
                ?error,
                "no thread pool of its own: ranks share one"
            );
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rayon::prelude::*;

    use super::*;

    /// Parts of parts, between which the others have nothing to do for longer and shorter.
    #[test]
    fn all_threads_take_parts_and_none_waits_for_ever() {
        for threads in 1..=4 {
            let (sent, received) = channel();
            let rank = std::thread::spawn(move || {
                in_own_pool(Rank(0), threads, move || {
                    let all = Threads::lead();
                    for pause in [0, 50, 300, 3000] {
                        let sum: u64 = all.work(|| {
                            let inner = |i: u64| (0..i).into_par_iter().map(|j| j ^ i).sum::<u64>();
                            let first: u64 = (0..200).into_par_iter().map(inner).sum();
                            std::thread::sleep(Duration::from_micros(pause));
                            first + (0..200).into_par_iter().map(inner).sum::<u64>()
                        });
                        sent.send((rayon::current_num_threads(), sum))
                            .expect("it listens");
                        std::thread::sleep(Duration::from_micros(pause));
                    }
                });
            });
            let one = |i: u64| (0..i).map(|j| j ^ i).sum::<u64>();
            let expected = 2 * (0..200).map(one).sum::<u64>();
            let found: Vec<_> = received.iter().collect();
            assert_eq!(found, [(threads, expected); 4]);
            rank.join().expect("it ends");
        }
    }

    #[test]
    fn a_panic_of_the_work_ends_all_threads() {
        let alive = Arc::new(());
        let held = alive.clone();
        let rank = std::thread::spawn(move || {
            in_own_pool(Rank(0), 3, move || {
                let held = held;
                Threads::lead().work(|| panic!("{held:?}"));
            });
        });
        rank.join().expect("the pool drops what has panicked");
        // The threads of the pool hold what they watch until they end.
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
