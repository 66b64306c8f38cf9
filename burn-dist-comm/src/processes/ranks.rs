//! What the engine knows of the ranks of this process, and they of it.

use crate::buffer::{Memory, Work};
use crate::info::CallInfo;
use crate::{Block, CommError};
use burn_dist_mesh::Rank;
use std::sync::Arc;

/// The ranks of a mesh that live in this process.
pub(crate) trait Ranks: Send + Sync {
    /// Where outputs are made.
    fn memory(&self) -> &Memory;

    /// Stops the ranks because of what is found here; they have the others told.
    fn abort(&self, error: CommError);

    /// Stops the ranks because of what the other processes know.
    fn stopped(&self, error: CommError);
}

/// Whoever waits for a call.
pub(crate) trait Waiters: Send + Sync {
    /// Notes whose inputs are still to come from other processes.
    fn await_ranks(&self, ranks: Vec<Rank>);

    /// Hands them the work that fills their outputs.
    fn conclude(&self, work: Work);

    /// Has them look for the outcome, or for the fault because of which there is none.
    fn wake(&self);
}

/// A call that all ranks of this process have made.
pub(crate) struct Opened {
    pub ranks: Arc<dyn Ranks>,
    pub waiters: Arc<dyn Waiters>,
    /// By member; those of other processes are missing.
    pub inputs: Vec<Option<Block>>,
    pub info: Arc<CallInfo>,
    /// Whether the channel is of transfers, which are not collectives.
    pub is_transfer: bool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.waiters.wake();
    }
}
