//! The locks and atomics of the transports, in one place, so that a model checker can take over by changing this file
//! only.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};

use std::sync::{MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another holder.
///
/// Every critical section of this folder leaves its data consistent at each step, so a panic elsewhere must not turn
/// into a second one here: the survivors learn of it through the hub's fault instead.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
