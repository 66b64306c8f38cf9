//! Reports: what a mesh did, and what its plans do.

use std::time::Duration;

use burn_ir::BackendIr;

use super::MeshDevice;
use super::ranks::client;
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
pub fn report<B: BackendIr>(device: &MeshDevice) -> MeshReport {
    let client = client::<B>(device);
    let (stats, answers) = client.with(|recorder| (recorder.stats(), recorder.runtime_stats()));
    MeshReport {
        cache: stats.cache,
        plan_time: stats.plan_time,
        ops: stats.ops,
        redundancy: stats.redundancy,
        ranks: answers.map(|ticket| ticket.wait()).unwrap_or_default(),
    }
}

/// Returns what has stopped a mesh.
pub fn fault<B: BackendIr>(device: &MeshDevice) -> Option<Fault> {
    client::<B>(device).with(|recorder| recorder.fault())
}

/// Returns what the ranks of a mesh did when, if it keeps that. Closes the window and waits for the local ranks.
pub fn trace<B: BackendIr>(device: &MeshDevice) -> Option<Trace> {
    // Whoever answers has ended its windows.
    report::<B>(device);
    client::<B>(device).with(|recorder| recorder.trace())
}

/// Starts collecting what the plans of the following windows of a mesh do.
pub fn start_explaining<B: BackendIr>(device: &MeshDevice, ask: Ask) {
    client::<B>(device).with(|recorder| recorder.explain(ask));
}

/// Returns what was collected since [`start_explaining`], closing the window.
pub fn explained<B: BackendIr>(device: &MeshDevice) -> Explanation {
    client::<B>(device)
        .with(|recorder| recorder.explained())
        .unwrap_or_default()
}
