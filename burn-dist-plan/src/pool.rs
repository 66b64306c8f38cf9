//! Equal data once: models repeat their layers, and steps of one layer say what those of the next say.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// Hands out one [`Arc`] for all equal values.
pub(crate) struct Pool<T>(FxHashSet<Arc<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(FxHashSet::default())
    }
}

impl<T: Eq + Hash> Pool<T> {
    pub(crate) fn share(&mut self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(known) = self.0.get(value.borrow()) {
            return known.clone();
        }
        let value = value.into();
        self.0.insert(value.clone());
        value
    }
}
