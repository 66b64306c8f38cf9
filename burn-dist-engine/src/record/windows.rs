//! Windows that have ended and wait to be planned, in their order.
//!
//! A recorder puts them here under its lock, and they are planned outside of it: threads that record do not wait while
//! a window is planned. A thread plans the windows that it has ended, and those before. Where the plan of a window is not
//! known and nobody waits for its values, a thread of the mesh's own makes it, and the program goes on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::{self, Thread};

use burn_dist_door::Queue;
use burn_ir::BackendIr;

use super::closed::Closed;
use super::log::this_thread;
use super::planner::Planner;
use crate::run::Fault;

/// Windows that may wait, at most: a program that is so far ahead waits for them.
const WAITING_MAX: usize = 64;

/// The windows of a mesh that have ended, and what plans them.
pub(super) struct Windows<B: BackendIr> {
    waiting: Mutex<Waiting>,
    planner: Mutex<Planner<B>>,
    /// The number of the thread that plans; 0 if none does.
    planning: AtomicU64,
    /// The thread that makes plans where nobody waits; `None` if there can be none.
    apart: OnceLock<Option<Thread>>,
    /// Set once nothing runs any more.
    is_over: AtomicBool,
    queue: Arc<Queue>,
    /// Bytes of data that those that wait may keep.
    bytes_max: u64,
}

#[derive(Default)]
struct Waiting {
    windows: VecDeque<Closed>,
    bytes: u64,
}

/// The planner, for one thread.
pub(super) struct Planning<'a, B: BackendIr> {
    planner: MutexGuard<'a, Planner<B>>,
    windows: &'a Windows<B>,
}

impl<B: BackendIr> std::ops::Deref for Planning<'_, B> {
    type Target = Planner<B>;

    fn deref(&self) -> &Planner<B> {
        &self.planner
    }
}

impl<B: BackendIr> std::ops::DerefMut for Planning<'_, B> {
    fn deref_mut(&mut self) -> &mut Planner<B> {
        &mut self.planner
    }
}

impl<B: BackendIr> Drop for Planning<'_, B> {
    fn drop(&mut self) {
        let is_over = self.planner.has_ended();
        self.windows.is_over.store(is_over, Ordering::Relaxed);
        self.windows.planning.store(0, Ordering::Relaxed);
    }
}

impl<B: BackendIr> Windows<B> {
    /// Windows for a planner. Who serves the queue plans them.
    pub(super) fn new(planner: Planner<B>, queue: Arc<Queue>, bytes_max: u64) -> Arc<Self> {
        let windows = Arc::new(Self {
            waiting: Mutex::default(),
            is_over: AtomicBool::new(planner.has_ended()),
            planner: Mutex::new(planner),
            planning: AtomicU64::new(0),
            apart: OnceLock::new(),
            queue,
            bytes_max,
        });
        let of_queue = Arc::downgrade(&windows);
        windows.queue.set_plans(move || {
            if let Some(windows) = of_queue.upgrade() {
                windows.plan();
            }
        });
        windows
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Returns whether nothing runs any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Adds a window. It is planned once this thread has left the recorder's lock.
    ///
    /// # Panics
    /// If the calling thread plans, and waits for the values of the window.
    pub(super) fn push(&self, closed: Closed) {
        if closed.end.is_awaited() {
            self.check_thread();
        }
        let mut waiting = self.waiting();
        waiting.bytes += closed.bytes;
        waiting.windows.push_back(closed);
        drop(waiting);
        self.queue.window_ended();
    }

    /// Returns the planner, having planned all that waits.
    ///
    /// # Panics
    /// If the calling thread plans.
    pub(super) fn planner(&self) -> Planning<'_, B> {
        let mut planning = self.lock();
        self.plan_waiting(&mut planning);
        planning
    }

    /// Ends the thread that plans, if there is one.
    pub(super) fn close(&self) {
        if let Some(Some(thread)) = self.apart.get() {
            thread.unpark();
        }
    }

    /// Plans what waits, unless another thread plans or is to make the next plan: that one goes on with it.
    fn plan(self: &Arc<Self>) {
        if self.is_far_ahead() {
            drop(self.planner());
        }
        // What is added while another thread plans its last one is seen by that thread, or finds the planner free.
        while !self.waiting().windows.is_empty() {
            let planner = match self.planner.try_lock() {
                Ok(planner) => planner,
                Err(TryLockError::Poisoned(planner)) => planner.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let mut planning = self.by_this_thread(planner);
            while !planning.is_paused()
                && let Some(closed) = self.next()
            {
                planning.plan_known(closed);
            }
            if planning.is_paused() {
                drop(planning);
                match self.apart() {
                    Some(thread) => return thread.unpark(),
                    None => drop(self.planner()),
                }
            }
        }
    }

    /// Panics if the calling thread plans: it would wait for itself.
    fn check_thread(&self) {
        let is_mine = self.planning.load(Ordering::Relaxed) == this_thread();
        assert!(
            !is_mine,
            "a rule of a custom operation asks for a tensor of the mesh that plans it"
        );
    }

    fn is_far_ahead(&self) -> bool {
        let waiting = self.waiting();
        waiting.windows.len() > WAITING_MAX || waiting.bytes > self.bytes_max
    }

    /// Returns the thread that makes plans where nobody waits.
    fn apart(self: &Arc<Self>) -> Option<&Thread> {
        let start = || {
            let windows = Arc::downgrade(self);
            let thread = thread::Builder::new().name("planner".into());
            let thread = thread.spawn(move || Self::work(&windows)).ok()?;
            Some(thread.thread().clone())
        };
        self.apart.get_or_init(start).as_ref()
    }

    /// Plans what waits whenever there is something to do, until the mesh ends.
    fn work(windows: &Weak<Self>) {
        while let Some(windows) = windows.upgrade() {
            loop {
                let mut planning = windows.lock();
                let plan_waiting = || windows.plan_waiting(&mut planning);
                if catch_unwind(AssertUnwindSafe(plan_waiting)).is_err() {
                    planning.end(Fault::bug(
                        "the planner panicked: its own output says where",
                    ));
                }
                drop(planning);
                // As in `plan`.
                if windows.waiting().windows.is_empty() {
                    break;
                }
            }
            if windows.is_over() {
                return;
            }
            drop(windows);
            thread::park();
        }
    }

    fn plan_waiting(&self, planning: &mut Planning<'_, B>) {
        planning.go_on();
        while let Some(closed) = self.next() {
            planning.plan(closed);
        }
    }

    fn next(&self) -> Option<Closed> {
        let mut waiting = self.waiting();
        let closed = waiting.windows.pop_front()?;
        waiting.bytes -= closed.bytes;
        Some(closed)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Planning<'_, B> {
        self.check_thread();
        self.by_this_thread(self.planner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn by_this_thread<'a>(&'a self, planner: MutexGuard<'a, Planner<B>>) -> Planning<'a, B> {
        self.planning.store(this_thread(), Ordering::Relaxed);
        Planning {
            planner,
            windows: self,
        }
    }
}
