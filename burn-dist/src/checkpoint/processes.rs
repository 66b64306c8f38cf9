//! The processes of a run: what they do together, and how they learn what went wrong in another one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::StateError;
use crate::launch::Votes;
use crate::run::Fault;

/// How long a process that has done its part waits for the disks of others, while these answer.
const PATIENCE: Duration = Duration::from_secs(2 * 60 * 60);

/// The processes of a run, and which of them this is.
#[derive(Clone)]
pub(super) struct Processes {
    votes: Arc<Mutex<Votes>>,
    this: usize,
}

impl Processes {
    /// Returns those that share the ranks out, of their votes and which of them this is.
    pub(super) fn new((votes, this): (Votes, usize)) -> Self {
        Self {
            votes: Arc::new(Mutex::new(votes)),
            this,
        }
    }

    /// Returns whether this is the process that does what only one does.
    pub(super) fn leads(&self) -> bool {
        self.this == 0
    }

    /// Has every process do its `work`, and returns what it gave here, and what each says of its own. One that answers
    /// may work long; one that does not is named as one that is late for a collective.
    fn gather<T>(
        &self,
        work: impl FnOnce() -> T,
        told: impl FnOnce(&T) -> Vec<u8>,
    ) -> (T, Result<Vec<Vec<u8>>, StateError>) {
        let votes = self.votes.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, together) = votes.while_working(PATIENCE, work);
        let all = together.and_then(|()| votes.gather(&told(&made)));
        (made, all.map_err(StateError::from))
    }
}

/// Has every process do its `work`, tells all how this one fared, and returns what they made, or the first failure.
pub(super) fn agree(
    processes: Option<&Processes>,
    action: &'static str,
    work: impl FnOnce() -> Result<Value, StateError>,
) -> Result<Vec<Value>, StateError> {
    let Some(processes) = processes else {
        return work().map(|mine| vec![mine]);
    };
    let (mine, all) = processes.gather(work, |mine| {
        let text = match mine {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        text.to_string().into_bytes()
    });
    mine?;
    let each = all?.into_iter().enumerate().map(|(process, text)| {
        let elsewhere = |reason: &str| StateError::Elsewhere {
            process,
            action,
            reason: reason.to_string(),
        };
        let mut text: Value =
            serde_json::from_slice(&text).map_err(|error| elsewhere(&error.to_string()))?;
        match text.get("error").and_then(Value::as_str) {
            Some(reason) => Err(elsewhere(reason)),
            None => Ok(text["ok"].take()),
        }
    });
    each.collect()
}

/// Has every process do its `work`, and returns what it gave here, if all have done theirs, or the first failure.
pub(super) fn in_all<T>(
    processes: Option<&Processes>,
    action: &'static str,
    work: impl FnOnce() -> Result<T, StateError>,
) -> Result<T, StateError> {
    let mut value = None;
    agree(processes, action, || {
        value = Some(work()?);
        Ok(Value::Null)
    })?;
    value.ok_or_else(|| Fault::bug("processes agreed on a failure").into())
}
