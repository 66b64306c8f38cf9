//! Tasks of a rank before lifetimes are known.

use rustc_hash::FxHashMap;

use crate::ir::{RankPlan, Slot};
use crate::pipeline::Action;

/// The tasks of a rank before lifetimes are known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lowered<O> {
    pub plan: RankPlan<O>,
    /// The number of the unit visit that each task belongs to.
    pub visits: Vec<u32>,
    /// The actions in which operations make slots.
    pub actions: FxHashMap<Slot, Action>,
}
