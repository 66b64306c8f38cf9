//! The checkpoints of a run: one directory for each step, and which of them are kept.

use super::Save;
use crate::error::{CheckpointError, io_error};
use crate::format::SaveId;
use crate::load::Checkpoint;
use crate::storage::{Disk, Storage};
use std::io;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Marks directories that are no checkpoints: saves under way, given up or interrupted, and what is being removed.
const TEMPORARY: &str = ".tmp-";
const STEP: &str = "step-";

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The last so many.
    pub last: NonZeroUsize,
    /// And those of every so many steps.
    pub every: Option<NonZeroU64>,
}

impl Keep {
    /// Returns those of `steps`, ascending, that are not kept.
    fn superfluous(&self, steps: &[u64]) -> Vec<u64> {
        let older = &steps[..steps.len().saturating_sub(self.last.get())];
        let is_kept = |step: u64| {
            self.every
                .is_some_and(|every| step.is_multiple_of(every.get()))
        };
        older
            .iter()
            .copied()
            .filter(|&step| !is_kept(step))
            .collect()
    }
}

/// The checkpoints of a run, in one directory.
///
/// One save at a time; the processes of a save share the directory.
#[derive(Clone)]
pub struct Checkpoints {
    storage: Arc<dyn Storage>,
    root: PathBuf,
}

impl Checkpoints {
    /// Returns those in a directory, which need not be there yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(Disk), root)
    }

    /// Returns those in a directory of any storage.
    pub fn on(storage: Arc<dyn Storage>, root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { storage, root }
    }

    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Returns the steps of which there is a checkpoint, ascending.
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

    /// Opens the latest checkpoint, if there is any.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open_latest(&self) -> Result<Option<(u64, Checkpoint)>, CheckpointError> {
        let latest = self.steps()?.last().copied();
        latest.map(|step| Ok((step, self.open(step)?))).transpose()
    }

    /// Begins the save of a step. Every process does so, with the same `save_id`.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] and [`CheckpointError::Io`].
    pub fn save(&self, step: u64, save_id: SaveId) -> Result<Save<'_>, CheckpointError> {
        Save::begin(self, step, save_id)
    }

    /// Removes the checkpoints that are not kept, and what interrupted saves have left. Returns the steps.
    ///
    /// One process calls it, while nobody saves. The latest checkpoint always stays.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn prune(&self, keep: Keep) -> Result<Vec<u64>, CheckpointError> {
        let superfluous = keep.superfluous(&self.steps()?);
        for &step in &superfluous {
            self.give_up(step)?;
        }
        self.sweep()?;
        Ok(superfluous)
    }

    /// Removes the checkpoint of a step, if it is there, and what interrupted saves have left.
    ///
    /// One process calls it, while nobody saves.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn remove(&self, step: u64) -> Result<(), CheckpointError> {
        if self.steps()?.contains(&step) {
            self.give_up(step)?;
        }
        self.sweep()
    }

    /// Takes a checkpoint its name.
    fn give_up(&self, step: u64) -> Result<(), CheckpointError> {
        let name = step_name(step);
        let from = self.root.join(&name);
        let to = self.root.join(format!("{TEMPORARY}{name}-removed"));
        let renamed = self.storage.rename(&from, &to);
        renamed.map_err(io_error("rename the directory", &from))
    }

    /// Removes what is no checkpoint.
    fn sweep(&self) -> Result<(), CheckpointError> {
        let left: Vec<String> = self.names()?;
        let left: Vec<_> = left
            .iter()
            .filter(|name| name.starts_with(TEMPORARY))
            .collect();
        if !left.is_empty() {
            // Only what is gone by name for good may lose its files.
            let synced = self.storage.sync_dir(&self.root);
            synced.map_err(io_error("sync the directory", &self.root))?;
        }
        for name in left {
            let path = self.root.join(name);
            let removed = self.storage.remove_dir(&path);
            removed.map_err(io_error("remove the directory", &path))?;
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        match self.storage.list(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(io_error("list the directory", &self.root)),
        }
    }
}

/// Returns the name of the directory of a step.
pub(super) fn step_name(step: u64) -> String {
    format!("{STEP}{step:010}")
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(STEP)?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_and_every_so_often_are_kept() {
        let keep = |last, every| Keep {
            last: NonZeroUsize::new(last).unwrap(),
            every: NonZeroU64::new(every),
        };
        let steps = [10, 20, 30, 40, 50];
        assert_eq!(keep(2, 0).superfluous(&steps), [10, 20, 30]);
        assert_eq!(keep(1, 20).superfluous(&steps), [10, 30]);
        assert_eq!(keep(9, 0).superfluous(&steps), [0; 0]);
        assert_eq!(keep(1, 0).superfluous(&[]), [0; 0]);
    }

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
