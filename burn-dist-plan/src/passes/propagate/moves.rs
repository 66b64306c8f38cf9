//! The time that it takes to have values in other layouts.

use std::collections::HashMap;
use std::sync::Arc;

use super::options::Cost;
use super::view::OperandView;
use crate::cost::{Network, work_ns};
use crate::layout::{Layout, redistribute};
use crate::mesh::{AxisIndex, MeshShape};

/// The costs of moves on a mesh; each is found once.
pub(super) struct Moves<'a> {
    pub mesh: &'a MeshShape,
    pub network: Network<'a>,
    /// Nanoseconds of redistributions.
    known: HashMap<(Arc<Layout>, Layout, usize), f64>,
}

impl<'a> Moves<'a> {
    pub(super) fn new(mesh: &'a MeshShape, network: Network<'a>) -> Self {
        Self {
            mesh,
            network,
            known: HashMap::new(),
        }
    }

    /// Returns the nanoseconds of a redistribution.
    pub(super) fn ns(&mut self, from: &Arc<Layout>, to: &Layout, elem_bytes: usize) -> f64 {
        if from.as_ref() == to {
            return 0.0;
        }
        let key = (from.clone(), to.clone(), elem_bytes);
        if let Some(cost) = self.known.get(&key) {
            return *cost;
        }
        let cost = redistribute::cost(&self.network, from, to, elem_bytes);
        self.known.insert(key, cost);
        cost
    }

    /// Returns what it would cost to have a value in `layout` (up to what is at rest, for elementwise operations).
    pub(super) fn cost(&mut self, value: &OperandView, layout: &Layout, elementwise: bool) -> Cost {
        let elem_bytes = value.dtype.size();
        if value.is_free && value.versions.is_empty() {
            return Cost::default();
        }
        let mut best = Cost::MAX;
        for from in &value.versions {
            let mut to = layout.clone();
            if elementwise && from.dims == to.dims {
                to.at_rest = from.at_rest.clone();
            }
            let (before, after) = (from.axes_used(), to.axes_used());
            let leaves = |axis: &AxisIndex| before.contains(axis) && !after.contains(axis);
            let cost = Cost {
                moved: u32::from(value.pinned.iter().any(leaves)),
                ns: self.ns(from, &to, elem_bytes),
                ..Cost::default()
            };
            if cost < best {
                best = cost;
            }
        }
        if value.is_free {
            // It can be made again, where it is needed.
            let bytes = layout.local_numel_max(self.mesh) * elem_bytes;
            best.ns = best.ns.min(work_ns(0.0, bytes as f64));
        }
        best
    }
}
