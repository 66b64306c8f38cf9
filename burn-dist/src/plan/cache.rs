//! Plans by window: a steady training step plans nothing.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::task::Plan;
use super::window::Window;
use super::{PlanError, PlanOptions, plan};
use crate::mesh::MeshShape;

/// Tasks kept, over all plans: about 100 MiB. A training run has a handful of windows of some thousand tasks per rank.
const TASKS_MAX: usize = 1 << 18;

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

/// Plans by structural hash, compared in full: a collision costs time, never a value.
#[derive(Default)]
pub struct PlanCache {
    plans: FxHashMap<u64, Vec<(Window, Arc<Plan>)>>,
    tasks: usize,
    stats: CacheStats,
}

impl PlanCache {
    /// Returns the plan of `window`, planning it if it is new; and whether it was.
    ///
    /// # Errors
    /// [`PlanError`] if it cannot be planned.
    pub fn get(
        &mut self,
        window: Window,
        mesh: &MeshShape,
        options: &PlanOptions,
    ) -> Result<(Arc<Plan>, bool), PlanError> {
        self.stats.windows += 1;
        if let Some(found) = self
            .plans
            .get(&window.hash)
            .and_then(|plans| plans.iter().find(|(other, _)| *other == window))
        {
            self.stats.hits += 1;
            return Ok((found.1.clone(), false));
        }
        self.stats.misses += 1;
        let planned = Arc::new(plan(&window, mesh, options)?);
        let tasks: usize = planned.ranks.iter().map(|rank| rank.tasks.len()).sum();
        if self.tasks + tasks > TASKS_MAX {
            // A program whose windows never repeat gains nothing from a cache; one whose windows do refills it at once.
            self.clear();
        }
        self.tasks += tasks;
        self.plans
            .entry(window.hash)
            .or_default()
            .push((window, planned.clone()));
        Ok((planned, true))
    }

    /// Forgets all plans.
    pub fn clear(&mut self) {
        self.plans = FxHashMap::default();
        self.tasks = 0;
    }

    /// Returns what it did so far.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }
}
