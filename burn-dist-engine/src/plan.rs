//! The planner, for the operations that this crate records.

use crate::ops::Recorded;

pub use burn_dist_plan::PASSES;
pub use burn_dist_plan::cache::CacheStats;
pub use burn_dist_plan::cost::DeviceCosts;
pub use burn_dist_plan::float8::Float8Layer;
#[cfg(any(test, feature = "text-form"))]
pub(crate) use burn_dist_plan::form;
pub use burn_dist_plan::pipeline as schedule;
pub use burn_dist_plan::{
    AxisRedundancy, FewRows, Float, Pipeline, PlanError, PlanOptions, Redundancy, RegionKernels,
    Regions, ScheduleChoice, ScheduleKind, Stage, Storage, clock, explain, fuzz, memory,
};
pub(crate) use burn_dist_plan::{account, runs};
pub(crate) use burn_dist_plan::{plan, text_after, why};

pub(crate) type Window = burn_dist_plan::window::Window<Recorded>;
pub(crate) type PlanCache = burn_dist_plan::cache::PlanCache<Recorded>;
pub(crate) use burn_dist_plan::window::{Entry, Input, InputState, Origin, ValueIndex};

/// Plans for the ranks.
pub(crate) mod task {
    use crate::ops::Recorded;

    pub(crate) type Task = burn_dist_plan::task::Task<Recorded>;
    pub(crate) type RankPlan = burn_dist_plan::task::RankPlan<Recorded>;
    pub(crate) type Plan = burn_dist_plan::task::Plan<Recorded>;
    pub(crate) use burn_dist_plan::task::{
        CollectiveTask, ReadPlan, RegionTask, Slot, TermOf, TransferTask, UploadTask,
    };
}
