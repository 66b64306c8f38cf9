//! The checkpoints of a run: one directory for each step.

use crate::error::{CheckpointError, io_error};
use crate::load::Checkpoint;
use crate::storage::{Disk, Storage};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Marks directories that are no checkpoints: saves in progress, abandoned or interrupted, and what is being removed.
pub(super) const TEMPORARY: &str = ".tmp-";
const STEP: &str = "step-";

/// The checkpoints of a run, in one directory.
///
/// One save at a time; the processes of a save share the directory. One program saves to it: see [`Self::lock`].
#[derive(Clone)]
pub struct Checkpoints {
    storage: Arc<dyn Storage>,
    root: PathBuf,
    pub(super) own: Arc<Mutex<Own>>,
}

impl Checkpoints {
    /// Returns those in a directory, which need not be there yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(Disk), root)
    }

    /// Returns those in a directory of any storage.
    pub fn on(storage: Arc<dyn Storage>, root: impl Into<PathBuf>) -> Self {
        Self {
            storage,
            root: root.into(),
            own: Arc::default(),
        }
    }

    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Returns the steps of which there is a checkpoint, or something of its name ([`Self::newest`]), ascending.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]; no directory has no checkpoints.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let names = self.names()?;
        let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Opens the checkpoint of a step.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open(&self, step: u64) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open_on(self.storage.clone(), self.root.join(step_name(step)))
    }

    pub(super) fn names(&self) -> Result<Vec<String>, CheckpointError> {
        match self.storage.list(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(io_error("list the directory", &self.root)),
        }
    }
}

/// A program's own state of a directory. Clones of [`Checkpoints`] share it.
#[derive(Default)]
pub(super) struct Own {
    pub(super) lock: Option<Lock>,
    /// Directories that it has abandoned and not removed yet.
    pub(super) given_up: BTreeSet<String>,
}

/// The claim of this program to save to a directory.
pub(super) enum Lock {
    /// Dropping it gives the directory back.
    Held { _guard: Box<dyn Send + Sync> },
    /// The file system has none.
    Unsupported,
}

/// Returns the name of the directory of a step.
pub(super) fn step_name(step: u64) -> String {
    format!("{STEP}{step:010}")
}

/// Returns the name of a directory that is no checkpoint of a step: a save of this id, say.
pub(super) fn temporary_name(step: u64, end: &str) -> String {
    format!("{TEMPORARY}{}-{end}", step_name(step))
}

/// Returns the step of which a directory has the name.
pub(super) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(STEP)?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_read_back() {
        assert_eq!(step_name(42), "step-0000000042");
        for step in [0, 42, u64::MAX] {
            assert_eq!(step_of(&step_name(step)), Some(step));
        }
        for name in [
            "step-42",
            "step-",
            "step-+000000042",
            ".tmp-step-0000000042-x",
            "manifest.json",
        ] {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
