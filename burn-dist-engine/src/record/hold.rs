//! Windows that are held open.

use std::sync::Arc;

use super::any::{client, with};
use super::hold_note::HoldNote;
use super::{MeshDevice, OnRanks};

/// Keeps the window of a mesh open until it is dropped: see `MeshBackend::hold`.
#[must_use = "the window is held until this is dropped"]
pub struct Hold {
    note: Arc<HoldNote>,
    release: Option<Box<dyn FnOnce() + Send>>,
}

impl Hold {
    /// Says which microbatch is recorded now, from 0.
    pub fn at_microbatch(&self, number: usize, all: usize) {
        self.note.at_microbatch(number, all);
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
    let note = Arc::new(HoldNote::of_caller());
    with(&client, |recorder| recorder.hold(note.clone()));
    let held = note.clone();
    Hold {
        note,
        release: Some(Box::new(move || {
            with(&client, |recorder| recorder.release(&held));
        })),
    }
}
