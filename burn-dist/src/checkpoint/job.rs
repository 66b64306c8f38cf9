//! Saving a state: what all processes do, once the ranks have been asked for their parts.

use std::sync::Arc;

use burn_dist_checkpoint::{Checkpoints, Keep, Meter, Part, Save, SavePlan};
use serde_json::{Map, Value, json};

use super::StateError;
use super::processes::{Processes, agree, in_all};
use super::write::{new_id, write};
use crate::record::parts::PendingPart;

/// A save, as far as the ranks have been asked for their parts.
pub(super) struct Job {
    pub(super) checkpoints: Checkpoints,
    pub(super) step: u64,
    pub(super) keep: Option<Keep>,
    pub(super) processes: Option<Processes>,
    pub(super) plan: Arc<SavePlan>,
    /// The writers of this process, each with its shares.
    pub(super) writers: Vec<(usize, Vec<PendingPart>)>,
    pub(super) metadata: Map<String, Value>,
}

impl Job {
    /// Writes the parts of this process, and commits once all have.
    pub(super) fn run(self, meter: Option<&Meter>) -> Result<(), StateError> {
        let processes = self.processes.as_ref();
        let leads = processes.is_none_or(Processes::leads);
        // All use the one of process 0.
        let ids = agree(processes, "begin", || {
            if leads {
                self.checkpoints.lock()?;
            }
            Ok(json!(new_id(&self.checkpoints)?))
        })?;
        let id = serde_json::from_value(ids[0].clone()).map_err(not_understood)?;

        let (checkpoints, plan, step) = (self.checkpoints.clone(), self.plan, self.step);
        let mut begun = None;
        let all = agree(processes, "write", || {
            let save = begun.insert(checkpoints.save(step, id)?);
            Ok(json!(write(save, &plan, self.writers, meter)?))
        });
        let (save, all) = match (begun.filter(|_| leads), all) {
            (save, Ok(all)) => (save, all),
            (Some(save), Err(error)) => {
                save.abandon();
                return Err(error);
            }
            (None, Err(error)) => return Err(error),
        };
        in_all(processes, "commit", || {
            let Some(save) = save else { return Ok(()) };
            commit(save, &plan, &all, self.metadata)?;
            // The checkpoint is there; what could not be removed is for people to know.
            if let Some(keep) = self.keep
                && let Err(error) = checkpoints.prune(keep)
            {
                tracing::warn!(%error, "old checkpoints were not removed");
            }
            Ok(())
        })
    }
}

fn not_understood(error: serde_json::Error) -> StateError {
    StateError::Elsewhere {
        process: 0,
        action: "describe",
        reason: error.to_string(),
    }
}

fn commit(
    save: Save<'_>,
    plan: &SavePlan,
    all: &[Value],
    metadata: Map<String, Value>,
) -> Result<(), StateError> {
    let mut parts = Vec::new();
    for part in all {
        let of_process: Vec<Part> = serde_json::from_value(part.clone()).map_err(not_understood)?;
        parts.extend(of_process);
    }
    save.commit(plan, parts, metadata)?;
    Ok(())
}
