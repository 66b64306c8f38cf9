//! A thread beside a rank, for what the rank cannot see while its device holds it up.

use super::order::Poison;
use burn_dist_comm::{CommError, Communicator, lock};
use std::sync::{Arc, Condvar, Mutex, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks: a small part of the time after which a call is late.
const PERIOD: Duration = Duration::from_millis(5);

/// How long the rank may keep its calls to itself after a fault: longer than it needs to end them.
const PATIENCE: Duration = Duration::from_secs(10);

/// The calls of a rank, which are watched.
pub trait Watched: Send + 'static {
    /// Looks at open calls.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&mut self, host: &dyn Communicator) -> Result<(), CommError>;

    /// Ends open calls. The fault is known.
    fn abort(&mut self);
}

/// Watches a rank's calls until it is dropped, or the mesh has a fault.
pub struct Watcher {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts to watch.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn start<T: Watched>(
        name: String,
        host: &Arc<dyn Communicator>,
        calls: &Arc<Mutex<T>>,
        poison: Poison,
    ) -> std::io::Result<Self> {
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let (of_thread, host) = (Arc::clone(&stop), Arc::downgrade(host));
        let calls = Arc::downgrade(calls);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || watch(&host, &calls, poison, &of_thread))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let (stop, changed) = &*self.stop;
        *lock(stop) = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // It has reported what there was to say.
            let _ = thread.join();
        }
    }
}

/// Returns whether to stop, after a while.
fn pause(stop: &(Mutex<bool>, Condvar)) -> bool {
    let (stop, changed) = stop;
    let wait = changed.wait_timeout_while(lock(stop), PERIOD, |stop| !*stop);
    *wait.unwrap_or_else(std::sync::PoisonError::into_inner).0
}

fn watch<T: Watched>(
    host: &Weak<dyn Communicator>,
    calls: &Weak<Mutex<T>>,
    poison: Poison,
    stop: &(Mutex<bool>, Condvar),
) {
    let mut since = None;
    while !pause(stop) {
        let (Some(host), Some(calls)) = (host.upgrade(), calls.upgrade()) else {
            return;
        };
        let is_faulty = host.fault().is_some();
        match calls.try_lock() {
            Ok(mut calls) => match is_faulty {
                true => return calls.abort(),
                false => {
                    if let Err(error) = calls.check(&*host) {
                        // The next look ends what is open.
                        host.abort(error);
                    }
                }
            },
            Err(TryLockError::Poisoned(calls)) => return calls.into_inner().abort(),
            // The rank is at its calls, and looks for faults itself, unless its device holds it up there.
            Err(TryLockError::WouldBlock) if is_faulty => {
                let since = *since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    tracing::warn!(
                        "a rank does not end its calls after a fault: its GPU waits for them no longer"
                    );
                    return poison.set();
                }
            }
            Err(TryLockError::WouldBlock) => {}
        }
    }
}
