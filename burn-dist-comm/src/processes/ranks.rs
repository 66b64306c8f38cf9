//! The ranks of this process, as the engine knows them, and the engine for them.

use super::membership::End;
use crate::buffer::Memory;
use crate::completion::Completion;
use crate::info::CallInfo;
use crate::{Block, CommError};
use std::sync::Arc;

/// The ranks of a mesh that live in this process.
pub(crate) trait Ranks: Send + Sync {
    /// Where outputs are made.
    fn memory(&self) -> &Memory;

    /// Stops the ranks because of a fault that is found here; they have the others notified.
    fn abort(&self, error: CommError);

    /// Stops the ranks because of what the other processes know.
    fn stopped(&self, error: CommError);

    /// Takes note of a process that has ended without a word.
    fn lost(&self, process: u32, end: &End);
}

/// A call that all ranks of this process have made.
pub(crate) struct Opened {
    pub ranks: Arc<dyn Ranks>,
    pub completion: Arc<Completion>,
    /// By member; those of other processes are missing.
    pub inputs: Vec<Option<Block>>,
    pub info: Arc<CallInfo>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.completion.wake();
    }
}
