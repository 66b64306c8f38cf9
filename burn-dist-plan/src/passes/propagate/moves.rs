//! How values get into other layouts, and the time that it takes; each move is looked for once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::view::OperandView;
use crate::cost::{Network, work_ns};
use crate::layout::redistribute::Step;
use crate::layout::{Layout, LayoutError, redistribute};
use crate::mesh::{AxisIndex, MeshShape};
use crate::pool::Pool;

/// From a layout to another one, of elements of so many bytes.
type Ends = (Arc<Layout>, Arc<Layout>, usize);

/// The steps of a redistribution, each with the layout that it leads to.
pub(super) type Redistribution = Arc<[(Arc<Step>, Arc<Layout>)]>;

/// What it costs to have an operand in a layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct MoveCost {
    /// Whether a parameter, or a view of one, leaves axes that a style splits it over.
    pub moved: u32,
    pub ns: f64,
}

/// Moves on a mesh.
pub(super) struct Moves<'a> {
    pub network: Network<'a>,
    /// Nanoseconds of redistributions.
    known: FxHashMap<Ends, f64>,
    /// Redistributions of the program.
    planned: FxHashMap<Ends, Redistribution>,
    steps: Pool<Step>,
}

impl<'a> Moves<'a> {
    pub(super) fn new(network: Network<'a>) -> Self {
        Self {
            network,
            known: FxHashMap::default(),
            planned: FxHashMap::default(),
            steps: Pool::default(),
        }
    }

    pub(super) fn mesh(&self) -> &'a MeshShape {
        self.network.mesh()
    }

    /// Returns the steps of a redistribution.
    pub(super) fn plan(
        &mut self,
        from: &Arc<Layout>,
        to: &Arc<Layout>,
        elem_bytes: usize,
    ) -> Result<Redistribution, LayoutError> {
        let ends = (from.clone(), to.clone(), elem_bytes);
        if let Some(steps) = self.planned.get(&ends) {
            return Ok(steps.clone());
        }
        let steps = redistribute::plan(&self.network, from, to, elem_bytes)?.into_iter();
        let steps = steps.map(|step| {
            let to = Arc::new(step.to.clone());
            (self.steps.share(step), to)
        });
        let steps: Redistribution = steps.collect();
        self.planned.insert(ends, steps.clone());
        Ok(steps)
    }

    /// Returns the nanoseconds of a redistribution.
    pub(super) fn ns(&mut self, from: &Arc<Layout>, to: &Arc<Layout>, elem_bytes: usize) -> f64 {
        if from == to {
            return 0.0;
        }
        let ends = (from.clone(), to.clone(), elem_bytes);
        let network = &self.network;
        let cost = || redistribute::cost(network, from, to, elem_bytes);
        *self.known.entry(ends).or_insert_with(cost)
    }

    /// Returns what it would cost to have a value in `layout` (up to what is at rest, for elementwise operations).
    pub(super) fn cost(
        &mut self,
        value: &OperandView,
        layout: &Arc<Layout>,
        elementwise: bool,
    ) -> MoveCost {
        let elem_bytes = value.dtype.size();
        if value.is_free && value.versions.is_empty() {
            return MoveCost::default();
        }
        let mut best = MoveCost {
            moved: u32::MAX,
            ns: f64::INFINITY,
        };
        for from in &value.versions {
            let mut to = layout.clone();
            if elementwise && from.dims == to.dims && from.at_rest != to.at_rest {
                Arc::make_mut(&mut to).at_rest.clone_from(&from.at_rest);
            }
            let (before, after) = (from.axes_used(), to.axes_used());
            let leaves = |axis: &AxisIndex| before.contains(axis) && !after.contains(axis);
            let cost = MoveCost {
                moved: u32::from(value.pinned.iter().any(leaves)),
                ns: self.ns(from, &to, elem_bytes),
            };
            if cost < best {
                best = cost;
            }
        }
        if value.is_free {
            // It can be made again, where it is needed.
            let bytes = layout.local_numel_max(self.mesh()) * elem_bytes;
            best.ns = best.ns.min(work_ns(0.0, bytes as f64));
        }
        best
    }
}
