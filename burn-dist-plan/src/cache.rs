//! Plans by window: a steady training step plans nothing.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::ir::{Op, Window};
use crate::mesh::MeshShape;
use crate::plan::Plan;
use crate::{PlanError, PlanOptions, plan};

/// How often the cache was asked and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheStats {
    /// Windows looked up.
    pub windows: u64,
    /// Found.
    pub hits: u64,
    /// Planned anew.
    pub misses: u64,
}

/// Plans by structural hash, compared in full: a collision costs time, never a value. Bounded in bytes; the plans that
/// were not used for longest go first.
pub struct PlanCache<O> {
    plans: FxHashMap<u64, Vec<Entry<O>>>,
    bytes: usize,
    bytes_max: usize,
    stats: CacheStats,
}

struct Entry<O> {
    window: Window<O>,
    plan: Arc<Plan<O>>,
    bytes: usize,
    /// When it was used last, in windows looked up.
    used: u64,
}

impl<O: Op> PlanCache<O> {
    /// A cache of plans of at most `bytes_max` together.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            plans: FxHashMap::default(),
            bytes: 0,
            bytes_max,
            stats: CacheStats::default(),
        }
    }

    /// Returns the plan of `window` if it is known.
    pub fn find(&mut self, window: &Window<O>) -> Option<Arc<Plan<O>>> {
        let plans = self.plans.get_mut(&window.hash)?;
        let found = plans.iter_mut().find(|entry| entry.window == *window)?;
        self.stats.windows += 1;
        self.stats.hits += 1;
        found.used = self.stats.windows;
        Some(found.plan.clone())
    }

    /// Plans a window that is not known.
    ///
    /// # Errors
    /// [`PlanError`] if it cannot be planned.
    pub fn plan(
        &mut self,
        window: Window<O>,
        mesh: &MeshShape,
        options: &PlanOptions,
    ) -> Result<Arc<Plan<O>>, PlanError> {
        self.stats.windows += 1;
        self.stats.misses += 1;
        let planned = Arc::new(plan(&window, mesh, options)?);
        let bytes = window.bytes() + planned.bytes();
        self.make_room(bytes);
        self.bytes += bytes;
        self.plans.entry(window.hash).or_default().push(Entry {
            window,
            plan: planned.clone(),
            bytes,
            used: self.stats.windows,
        });
        Ok(planned)
    }

    /// Gives up the plans that were not used for longest until there is room for `bytes`, or none is left.
    fn make_room(&mut self, bytes: usize) {
        if self.bytes + bytes <= self.bytes_max {
            return;
        }
        let entries = self.plans.values().flatten();
        let mut by_use: Vec<(u64, usize)> =
            entries.map(|entry| (entry.used, entry.bytes)).collect();
        by_use.sort_unstable();
        let mut last = 0;
        for (used, freed) in by_use {
            if self.bytes + bytes <= self.bytes_max {
                break;
            }
            self.bytes -= freed;
            last = used;
        }
        for entries in self.plans.values_mut() {
            entries.retain(|entry| entry.used > last);
        }
        self.plans.retain(|_, entries| !entries.is_empty());
    }

    /// Forgets all plans.
    pub fn clear(&mut self) {
        self.plans = FxHashMap::default();
        self.bytes = 0;
    }

    /// Returns what it did so far.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }
}
