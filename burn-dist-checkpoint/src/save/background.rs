//! Saving on a thread of its own, while training goes on.

use super::Progress;
use crate::error::CheckpointError;
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The behaviour of a second save while one is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// It waits for the end of the first.
    Wait,
    /// It is refused.
    Refuse,
}

/// Saves on a thread of its own, one save at a time.
///
/// When it is dropped it waits for the save that is in progress: a program that ends loses no checkpoint.
#[derive(Default)]
pub struct Saver {
    current: Option<Arc<State>>,
}

/// A save that is in progress, or has ended.
///
/// Its error is in the log, for those who do not ask for it.
#[must_use = "whether the save succeeds is known by `wait`"]
pub struct Saving<T, E = CheckpointError> {
    thread: JoinHandle<Result<T, E>>,
    state: Arc<State>,
}

/// Where a save tells how far it is. Writers on several threads share it.
#[derive(Clone)]
pub struct Meter {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    ended: Condvar,
}

#[derive(Default)]
struct Inner {
    has_ended: bool,
    progress: Progress,
}

impl State {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut inner = self.inner();
        while !inner.has_ended {
            let woken = self.ended.wait(inner);
            inner = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Tells the end also if the thread panics.
struct End(Arc<State>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.inner().has_ended = true;
        self.0.ended.notify_all();
    }
}

impl Saver {
    /// Creates one without a save in progress.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts `save` on a thread. It owns what it writes: handles or copies that training does not change.
    ///
    /// # Errors
    /// [`CheckpointError::Busy`] if a save is in progress and `busy` says so, [`CheckpointError::Io`] if there is no
    /// thread.
    pub fn start<T, E>(
        &mut self,
        busy: Busy,
        save: impl FnOnce(&Meter) -> Result<T, E> + Send + 'static,
    ) -> Result<Saving<T, E>, CheckpointError>
    where
        T: Send + 'static,
        E: Display + Send + 'static,
    {
        if let Some(current) = &self.current {
            match busy {
                Busy::Refuse if !current.inner().has_ended => return Err(CheckpointError::Busy),
                _ => current.wait(),
            }
        }
        let state = Arc::new(State::default());
        let (meter, end) = (
            Meter {
                state: state.clone(),
            },
            End(state.clone()),
        );
        let thread = Builder::new().name("checkpoint".into()).spawn(move || {
            let _end = end;
            let saved = save(&meter);
            if let Err(error) = &saved {
                tracing::error!(%error, "a checkpoint was not saved");
            }
            saved
        });
        let thread = thread.map_err(|source| CheckpointError::Io {
            action: "start a thread for",
            path: "checkpoint".into(),
            source,
        })?;
        self.current = Some(state.clone());
        Ok(Saving { thread, state })
    }

    /// Waits for the save that is in progress, if there is one.
    pub fn wait(&self) {
        if let Some(current) = &self.current {
            current.wait();
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.wait();
    }
}

impl<T, E: From<CheckpointError>> Saving<T, E> {
    /// Returns how far it is.
    pub fn progress(&self) -> Progress {
        self.state.inner().progress
    }

    /// Returns whether it has ended, well or not.
    pub fn has_ended(&self) -> bool {
        self.state.inner().has_ended
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Those of the save, and [`CheckpointError::Panicked`].
    pub fn wait(self) -> Result<T, E> {
        let joined = self.thread.join();
        joined.map_err(|_| CheckpointError::Panicked)?
    }
}

impl Meter {
    /// Sets the bytes that all writers of the process will write.
    pub fn expect(&self, bytes_total: u64) {
        self.state.inner().progress.bytes_total = bytes_total;
    }

    /// Returns what a writer tells its progress to.
    pub fn writer(&self) -> impl FnMut(Progress) + use<> {
        let (state, mut before) = (self.state.clone(), 0);
        move |progress| {
            state.inner().progress.bytes_done += progress.bytes_done - before;
            before = progress.bytes_done;
        }
    }
}
