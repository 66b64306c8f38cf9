//! The planner, for the operations of this crate. Its functions are generic over the language of operations; those here
//! have it compiled once, in this crate.

use std::sync::Arc;

use burn_dist_mesh::{MeshShape, Rank};
use burn_dist_plan::clock::{ClockError, Hardware, Simulation};
use burn_dist_plan::explain::Explanation;
use burn_dist_plan::memory::PeakCause;

use crate::Recorded;

pub use burn_dist_plan::PASSES;
pub use burn_dist_plan::cache::CacheStats;
pub use burn_dist_plan::cost::DeviceCosts;
pub use burn_dist_plan::float8::Float8Layer;
pub use burn_dist_plan::pipeline as schedule;
pub use burn_dist_plan::runs;
pub use burn_dist_plan::window::{Entry, Input, InputState, Origin, ValueIndex};
pub use burn_dist_plan::{
    AxisRedundancy, Draws, FewRows, Float, Pipeline, PlanError, PlanOptions, Redundancy,
    RegionKernels, Regions, ScheduleChoice, ScheduleKind, Stage, Storage, clock, explain, fuzz,
    memory,
};

/// A part of a program that was recorded, to be planned.
pub type Window = burn_dist_plan::window::Window<Recorded>;

/// Plans for the ranks.
pub mod task {
    use crate::Recorded;

    /// One task of a rank: an operation, a collective, a region, ...
    pub type Task = burn_dist_plan::task::Task<Recorded>;
    /// Random values by global index.
    pub type RandomTask = burn_dist_plan::task::RandomTask<Recorded>;
    /// The plan of one rank.
    pub type RankPlan = burn_dist_plan::task::RankPlan<Recorded>;
    /// The plan of a window.
    pub type Plan = burn_dist_plan::task::Plan<Recorded>;
    pub use burn_dist_plan::task::{
        CollectiveTask, ReadPlan, RegionTask, Slot, TermOf, TransferTask, UploadTask,
    };
}

/// The plans of windows that were planned before; see [`PlanCache`](burn_dist_plan::cache::PlanCache) of the planner.
pub struct PlanCache(burn_dist_plan::cache::PlanCache<Recorded>);

impl PlanCache {
    /// A cache of plans of at most `bytes_max` together.
    pub fn new(bytes_max: usize) -> Self {
        Self(burn_dist_plan::cache::PlanCache::new(bytes_max))
    }

    /// Returns the plan of `window` if it is known.
    pub fn find(&mut self, window: &Window) -> Option<Arc<task::Plan>> {
        self.0.find(window)
    }

    /// Plans a window that is not known.
    ///
    /// # Errors
    /// [`PlanError`] if it cannot be planned.
    pub fn plan(
        &mut self,
        window: Window,
        mesh: &MeshShape,
        options: &PlanOptions,
    ) -> Result<Arc<task::Plan>, PlanError> {
        self.0.plan(window, mesh, options)
    }

    /// Forgets all plans.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns what it did so far.
    pub fn stats(&self) -> CacheStats {
        self.0.stats()
    }
}

/// Plans a window for the ranks named in `options`.
///
/// # Errors
/// [`PlanError`] if a layout that the user asked for is not possible, or an operation is not known.
pub fn plan(
    window: &Window,
    mesh: &MeshShape,
    options: &PlanOptions,
) -> Result<task::Plan, PlanError> {
    burn_dist_plan::plan(window, mesh, options)
}

/// Returns what there is of a window after one of [`PASSES`], as text.
///
/// # Errors
/// As [`plan`]; [`PlanError::UnknownPass`] if there is no pass of that name.
pub fn text_after(
    window: &Window,
    mesh: &MeshShape,
    options: &PlanOptions,
    pass: &str,
) -> Result<String, PlanError> {
    burn_dist_plan::text_after(window, mesh, options, pass)
}

/// Returns why the operation that makes a value is split as it is, as text.
///
/// # Errors
/// As [`plan`]; [`PlanError::UnknownValue`] if the window has no such value.
pub fn why(
    window: &Window,
    mesh: &MeshShape,
    options: &PlanOptions,
    value: burn_dist_plan::AskedValue,
) -> Result<String, PlanError> {
    burn_dist_plan::why(window, mesh, options, value)
}

/// Adds what a plan does to an explanation.
pub fn explain_plan(explanation: &mut Explanation, plan: &task::Plan) {
    explanation.add(plan);
}

/// Returns how long the plans of ranks take on modelled hardware.
///
/// # Errors
/// [`ClockError`].
pub fn simulate(
    ranks: &[(Rank, Arc<task::RankPlan>)],
    mesh: &MeshShape,
    hardware: &Hardware,
) -> Result<Simulation, ClockError> {
    clock::simulate(ranks, mesh, hardware)
}

/// Names a task: operation and module.
pub fn peak_cause(plan: &task::RankPlan, task: usize) -> PeakCause {
    burn_dist_plan::account::cause(plan, task)
}

/// Checks the law of a window's text form, and returns the text after each pass.
///
/// # Panics
/// If it does not hold; and if there is no plan of the window.
#[cfg(any(test, feature = "text-form"))]
pub fn check_form(
    window: &Window,
    mesh: &MeshShape,
    options: &PlanOptions,
    what: &str,
) -> Vec<String> {
    burn_dist_plan::form::check(window, mesh, options, what)
}
