//! Equal data once: models repeat their layers, and steps of one layer say what those of the next say.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// Hands out one [`Arc`] for all equal values.
pub(super) struct Pool<T>(FxHashSet<Arc<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(FxHashSet::default())
    }
}

impl<T: Eq + Hash> Pool<T> {
    pub(super) fn share(&mut self, value: impl Into<Arc<T>>) -> Arc<T> {
        let value = value.into();
        if let Some(known) = self.0.get(&value) {
            return known.clone();
        }
        self.0.insert(value.clone());
        value
    }
}
