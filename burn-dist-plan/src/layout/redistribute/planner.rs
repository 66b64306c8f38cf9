//! Plans remembered.

use super::Step;
use super::plan::{plan, total};
use crate::layout::{Layout, LayoutError};
use burn_dist_mesh::MeshShape;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Plans redistributions on one mesh and remembers them.
#[derive(Debug)]
pub struct Planner {
    mesh: MeshShape,
    known: FxHashMap<usize, FxHashMap<Layout, FxHashMap<Layout, Entry>>>,
}

#[derive(Clone, Debug)]
struct Entry {
    steps: Arc<[Step]>,
    cost: f64,
}

impl Planner {
    /// Creates a planner that remembers nothing yet.
    pub fn new(mesh: MeshShape) -> Self {
        Self {
            mesh,
            known: FxHashMap::default(),
        }
    }

    /// Returns the mesh.
    pub fn mesh(&self) -> &MeshShape {
        &self.mesh
    }

    /// Returns what [`plan`] returns.
    ///
    /// # Errors
    /// Those of [`plan`].
    pub fn plan(
        &mut self,
        from: &Layout,
        to: &Layout,
        elem_bytes: usize,
    ) -> Result<Arc<[Step]>, LayoutError> {
        Ok(self.entry(from, to, elem_bytes)?.steps)
    }

    /// Returns what [`cost`](super::cost) returns.
    pub fn cost(&mut self, from: &Layout, to: &Layout, elem_bytes: usize) -> f64 {
        if from == to {
            return 0.0;
        }
        match self.entry(from, to, elem_bytes) {
            Ok(entry) => entry.cost,
            Err(_) => f64::INFINITY,
        }
    }

    fn entry(
        &mut self,
        from: &Layout,
        to: &Layout,
        elem_bytes: usize,
    ) -> Result<Entry, LayoutError> {
        let known = self.known.entry(elem_bytes).or_default();
        if let Some(entry) = known.get(from).and_then(|known| known.get(to)) {
            return Ok(entry.clone());
        }
        let steps = plan(&self.mesh, from, to, elem_bytes)?;
        let entry = Entry {
            cost: total(&self.mesh, &steps, elem_bytes),
            steps: steps.into(),
        };
        known
            .entry(from.clone())
            .or_default()
            .insert(to.clone(), entry.clone());
        Ok(entry)
    }
}
