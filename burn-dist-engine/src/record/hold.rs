//! Windows that are held open.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::any::{client, with};
use super::log::this_thread;
use super::{MeshDevice, OnRanks};

/// Keeps the window of a mesh open until it is dropped: see `MeshBackend::hold`.
#[must_use = "the window is held until this is dropped"]
pub struct Hold {
    note: Arc<HoldNote>,
    release: Option<Box<dyn FnOnce() + Send>>,
}

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

impl Hold {
    /// Says which microbatch is recorded now, from 0.
    pub fn at_microbatch(&self, number: usize, all: usize) {
        self.note.microbatches.store(all, Ordering::Relaxed);
        self.note.microbatch.store(number + 1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a hold ({})", self.note)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

/// Holds the window of a mesh open.
#[track_caller]
pub fn hold<E: OnRanks>(device: &MeshDevice) -> Hold {
    let client = client::<E>(device);
    let note = Arc::new(HoldNote {
        place: Location::caller(),
        thread: this_thread(),
        microbatch: AtomicUsize::new(0),
        microbatches: AtomicUsize::new(0),
    });
    with(&client, |recorder| recorder.hold(note.clone()));
    let held = note.clone();
    Hold {
        note,
        release: Some(Box::new(move || {
            with(&client, |recorder| recorder.release(&held));
        })),
    }
}
