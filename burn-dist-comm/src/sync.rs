//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another holder.
///
/// Every critical section of this crate leaves its data consistent at each step, so a panic elsewhere must not turn
/// into a second one here: the survivors learn of it through the hub's fault instead.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
