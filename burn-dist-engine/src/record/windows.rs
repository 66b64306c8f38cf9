//! Windows that have ended and wait to be planned, in their order.
//!
//! A recorder puts them here under its lock, and they are planned outside of it: threads that record do not wait while
//! another one ends a window. A thread plans the windows that it has ended, and those before. Where the plan of a window
//! is not known and no thread waits for its values, a thread of its own makes it, and the program goes on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use burn_dist_door::Queue;
use burn_ir::BackendIr;

use super::closed::Closed;
use super::log::this_thread;
use super::planner::{Planned, Planner};
use crate::run::Fault;

/// Windows that may wait, at most: a program that is so far ahead waits for them.
const WAITING_MAX: usize = 64;

/// The windows of a mesh that have ended, and what plans them.
pub(super) struct Windows<B: BackendIr> {
    waiting: Mutex<Waiting>,
    planner: Mutex<Planner<B>>,
    /// The thread that plans.
    planning: AtomicU64,
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

/// The planner, for one thread. Nothing waits to be planned when one gets it, but what ends meanwhile.
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
    pub(super) fn push(&self, closed: Closed) {
        let mut waiting = self.waiting();
        waiting.bytes += closed.bytes;
        waiting.windows.push_back(closed);
        drop(waiting);
        self.queue.window_ended();
    }

    /// Returns the planner, having planned all that waits.
    ///
    /// # Panics
    /// If the calling thread plans: a rule of a custom operation asks for a tensor of the mesh.
    pub(super) fn planner(&self) -> Planning<'_, B> {
        let mut planning = self.lock();
        planning.go_on();
        while let Some(closed) = self.next() {
            planning.plan(closed);
        }
        planning
    }

    /// Plans what waits, unless another thread does or will.
    fn plan(self: &Arc<Self>) {
        if self.is_far_ahead() {
            drop(self.planner());
            return;
        }
        // One that ends while another thread plans its last one is seen by that thread or finds the planner free.
        while !self.waiting().windows.is_empty() {
            let Some(mut planning) = self.try_lock() else {
                return;
            };
            if planning.is_paused() {
                return;
            }
            while let Some(closed) = self.next() {
                if let Planned::Paused = planning.plan_known(closed) {
                    drop(planning);
                    self.go_on_apart();
                    return;
                }
            }
        }
    }

    /// Plans what waits on a thread of its own.
    fn go_on_apart(self: &Arc<Self>) {
        let windows = Arc::clone(self);
        let plan_all = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                drop(windows.planner());
                windows.plan();
            }));
            if outcome.is_err() {
                windows.panicked();
            }
        };
        let thread = std::thread::Builder::new().name("planner".into());
        if thread.spawn(plan_all).is_err() {
            drop(self.planner());
        }
    }

    /// Ends the mesh because planning has panicked where nobody sees it.
    fn panicked(&self) {
        let mut planning = self.lock();
        planning.end(Fault::bug(
            "the planner panicked: its own output says where",
        ));
        drop(planning);
        drop(self.planner());
    }

    fn next(&self) -> Option<Closed> {
        let mut waiting = self.waiting();
        let closed = waiting.windows.pop_front()?;
        waiting.bytes -= closed.bytes;
        Some(closed)
    }

    fn is_far_ahead(&self) -> bool {
        let waiting = self.waiting();
        waiting.windows.len() > WAITING_MAX || waiting.bytes > self.bytes_max
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Planning<'_, B> {
        let is_mine = self.planning.load(Ordering::Relaxed) == this_thread();
        assert!(
            !is_mine,
            "a rule of a custom operation asks for a tensor of the mesh that plans it"
        );
        self.guard(self.planner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_lock(&self) -> Option<Planning<'_, B>> {
        match self.planner.try_lock() {
            Ok(planner) => Some(self.guard(planner)),
            Err(TryLockError::Poisoned(planner)) => Some(self.guard(planner.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn guard<'a>(&'a self, planner: MutexGuard<'a, Planner<B>>) -> Planning<'a, B> {
        self.planning.store(this_thread(), Ordering::Relaxed);
        Planning {
            planner,
            windows: self,
        }
    }
}
