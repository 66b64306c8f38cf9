//! The caller that holds a window open.

use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::log::this_thread;

/// The caller that holds a window, for a warning.
#[derive(Debug)]
pub struct HoldNote {
    place: &'static Location<'static>,
    thread: u64,
    /// The microbatch that is being recorded, from 1, of how many; 0 if none is known.
    microbatch: AtomicUsize,
    microbatches: AtomicUsize,
}

impl HoldNote {
    /// Returns the note of whoever calls.
    #[track_caller]
    pub(super) fn of_caller() -> Self {
        Self {
            place: Location::caller(),
            thread: this_thread(),
            microbatch: AtomicUsize::new(0),
            microbatches: AtomicUsize::new(0),
        }
    }

    /// Says which microbatch is recorded now, from 0.
    pub(super) fn at_microbatch(&self, number: usize, all: usize) {
        self.microbatches.store(all, Ordering::Relaxed);
        self.microbatch.store(number + 1, Ordering::Relaxed);
    }

    /// Returns true if the calling thread holds the window.
    pub(super) fn is_mine(&self) -> bool {
        self.thread == this_thread()
    }
}

impl std::fmt::Display for HoldNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.microbatch.load(Ordering::Relaxed) {
            0 => {}
            number => {
                let all = self.microbatches.load(Ordering::Relaxed);
                write!(f, "in microbatch {number} of {all} ")?;
            }
        }
        write!(f, "of the step at {}", self.place)
    }
}
