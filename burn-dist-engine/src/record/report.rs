//! Reports: what a mesh did, and what its plans do.

use std::time::Duration;

use super::any::{client, with};
use super::{MeshDevice, OnRanks};
use crate::plan::CacheStats;
use crate::plan::Redundancy;
use crate::plan::explain::{Ask, Explanation};
use crate::run::{Fault, RankStats, Trace};

/// The work of a mesh since it was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshReport {
    /// Windows, and how often their plan was known.
    pub cache: CacheStats,
    /// Time spent on planning, looking plans up included.
    pub plan_time: Duration,
    /// Operations recorded.
    pub ops: u64,
    /// Work that ranks repeat, of all windows that were run.
    pub redundancy: Redundancy,
    /// Memory and traffic of the local ranks.
    pub ranks: Vec<RankStats>,
}

/// Returns what a mesh did since it was made. Closes the window and waits for the local ranks.
pub fn report<E: OnRanks>(device: &MeshDevice) -> MeshReport {
    let (stats, answers) = with(&client::<E>(device), |recorder| {
        (recorder.stats(), recorder.runtime_stats())
    });
    MeshReport {
        cache: stats.cache,
        plan_time: stats.plan_time,
        ops: stats.ops,
        redundancy: stats.redundancy,
        ranks: answers.map(|ticket| ticket.wait()).unwrap_or_default(),
    }
}

/// Returns what has stopped a mesh.
pub fn fault<E: OnRanks>(device: &MeshDevice) -> Option<Fault> {
    with(&client::<E>(device), |recorder| recorder.fault())
}

/// Returns what the ranks of a mesh did when, if it keeps that. Closes the window and waits for the local ranks.
pub fn trace<E: OnRanks>(device: &MeshDevice) -> Option<Trace> {
    // Whoever answers has ended its windows.
    report::<E>(device);
    with(&client::<E>(device), |recorder| recorder.trace())
}

/// Starts collecting what the plans of the following windows of a mesh do.
pub fn start_explaining<E: OnRanks>(device: &MeshDevice, ask: Ask) {
    with(&client::<E>(device), |recorder| recorder.explain(ask));
}

/// Returns what was collected since [`start_explaining`], closing the window.
pub fn explained<E: OnRanks>(device: &MeshDevice) -> Explanation {
    with(&client::<E>(device), |recorder| recorder.explained()).unwrap_or_default()
}
