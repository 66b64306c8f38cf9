//! A program's own in a directory of checkpoints: a lock, while it saves there, and what it removes.
//!
//! ```text
//! ROOT/checkpoints.lock                     who saves here: one program, all of whose processes write
//! ROOT/.tmp-step-0000000100-SAVE_ID         a save under way, or what is left of one
//! ROOT/.tmp-step-0000000100-removed         a checkpoint that is being removed
//! ROOT/aside-step-0000000100                what was in the way of a save of this step
//! ```
//!
//! Leftovers of programs that ended are removed when the lock is taken; afterwards, a program removes what it has
//! itself abandoned. Nothing else with such a name is touched.

use super::checkpoints::{Checkpoints, Lock, Own, TEMPORARY, step_name, step_of, temporary_name};
use crate::error::{CheckpointError, io_error};
use crate::format::SaveId;
use std::io;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};

const LOCK: &str = "checkpoints.lock";
const ASIDE: &str = "aside-";
/// The end of a name of [`TEMPORARY`], if it is of a checkpoint that is being removed.
const REMOVED: &str = "removed";

impl Checkpoints {
    /// Takes the directory for this program, and makes it if need be, until this and all of its clones are dropped or
    /// the program ends, however it does. What ended programs have left of saves is removed; what cannot be is logged.
    ///
    /// One of the processes of a program calls it, before any of them saves. [`Self::prune`], [`Self::remove`] and
    /// [`Self::set_aside_after`] do it themselves. Whoever reads needs no lock. On a file system without locks a
    /// warning is logged, and nobody is kept out.
    ///
    /// # Errors
    /// [`CheckpointError::Taken`] if another running program has it; [`CheckpointError::Io`].
    pub fn lock(&self) -> Result<(), CheckpointError> {
        self.locked().map(drop)
    }

    fn locked(&self) -> Result<MutexGuard<'_, Own>, CheckpointError> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if own.lock.is_some() {
            return Ok(own);
        }
        let (root, path) = (self.root(), self.root().join(LOCK));
        let created = self.storage().create_dir(root);
        created.map_err(io_error("create the directory", root))?;
        let lock = match self.storage().lock(&path) {
            Ok(guard) => Lock::Held { _guard: guard },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(CheckpointError::Taken {
                    root: root.to_path_buf(),
                    holder: error.to_string(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(
                    path = %root.display(),
                    "the file system has no locks, so nothing keeps a second program from saving here"
                );
                Lock::Unsupported
            }
            Err(error) => return Err(io_error("lock", &path)(error)),
        };
        own.lock = Some(lock);
        let left: Vec<String> = self
            .names()?
            .into_iter()
            .filter(|name| is_own(name))
            .collect();
        if let Err(error) = self.delete(left) {
            tracing::warn!(%error, "what an earlier save has left is not removed");
        }
        Ok(own)
    }

    /// Takes the checkpoints of these steps their names, and then removes their files. All are tried; the first error
    /// is returned, with the steps that are no checkpoints any more.
    pub(super) fn give_up(&self, steps: &[u64]) -> (Vec<u64>, Result<(), CheckpointError>) {
        let mut own = match self.locked() {
            Ok(own) => own,
            Err(error) => return (Vec::new(), Err(error)),
        };
        let (mut gone, mut outcome) = (Vec::new(), Ok(()));
        for &step in steps {
            let (name, removed) = (step_name(step), temporary_name(step, REMOVED));
            let from = self.root().join(name);
            match self.storage().rename(&from, &self.root().join(&removed)) {
                Ok(()) => {
                    own.given_up.insert(removed);
                    gone.push(step);
                }
                Err(error) => first(&mut outcome, io_error("rename the directory", &from)(error)),
            }
        }
        // What cannot be removed now is at the next start.
        if let Err(error) = self.delete(std::mem::take(&mut own.given_up)) {
            first(&mut outcome, error);
        }
        (gone, outcome)
    }

    /// Removes directories. All are tried; the first error is returned.
    fn delete(&self, names: impl IntoIterator<Item = String>) -> Result<(), CheckpointError> {
        let mut names = names.into_iter().peekable();
        if names.peek().is_some() {
            // Only what is gone by name for good may lose its files.
            let synced = self.storage().sync_dir(self.root());
            synced.map_err(io_error("sync the directory", self.root()))?;
        }
        let mut outcome = Ok(());
        for name in names {
            let path = self.root().join(name);
            if let Err(error) = self.storage().remove_dir(&path) {
                first(&mut outcome, io_error("remove the directory", &path)(error));
            }
        }
        outcome
    }

    /// Takes the checkpoints of all steps after `step` their names, or of all steps, so that these can be saved again;
    /// nothing is removed. Returns where each is now.
    ///
    /// One process calls it, while nobody saves.
    ///
    /// # Errors
    /// Those of [`Self::lock`].
    pub fn set_aside_after(
        &self,
        step: Option<u64>,
    ) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        self.lock()?;
        let steps = self.steps()?.into_iter();
        let later = steps.filter(|later| step.is_none_or(|step| *later > step));
        let moved = later.map(|step| Ok(self.set_aside(step)?.map(|path| (step, path))));
        let moved: Vec<_> = moved.collect::<Result<_, CheckpointError>>()?;
        if !moved.is_empty() {
            let synced = self.storage().sync_dir(self.root());
            synced.map_err(io_error("sync the directory", self.root()))?;
        }
        Ok(moved.into_iter().flatten().collect())
    }

    /// Gives what has the name of a step another one; returns where it is, unless another process was faster.
    pub(super) fn set_aside(&self, step: u64) -> Result<Option<PathBuf>, CheckpointError> {
        let from = self.root().join(step_name(step));
        let first = format!("{ASIDE}{}", step_name(step));
        let names = (2_u64..).map(|number| format!("{first}-{number}"));
        for name in std::iter::once(first.clone()).chain(names) {
            let to = self.root().join(name);
            match self.storage().rename(&from, &to) {
                Ok(()) => return Ok(Some(to)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(io_error("rename the directory", &from)(error)),
            }
        }
        Ok(None)
    }
}

/// Keeps the first of several errors, and logs the others.
fn first(outcome: &mut Result<(), CheckpointError>, error: CheckpointError) {
    match outcome {
        Ok(()) => *outcome = Err(error),
        Err(_) => tracing::warn!("{error}"),
    }
}

/// Returns whether a name is one of saves and removals: of others' directories nothing is known.
fn is_own(name: &str) -> bool {
    let parts = name.strip_prefix(TEMPORARY);
    let parts = parts.and_then(|rest| rest.rsplit_once('-'));
    parts.is_some_and(|(step, end)| {
        step_of(step).is_some() && (end == REMOVED || end.parse::<SaveId>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::save::Keep;
    use crate::storage::Storage;
    use crate::storage::memory::MemoryStorage;
    use crate::tests::names;
    use crate::tests::state::State;
    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::sync::Arc;

    const KEEP: Keep = Keep {
        last: NonZeroUsize::MIN,
        every: None,
    };

    fn at(storage: &MemoryStorage) -> Checkpoints {
        Checkpoints::on(Arc::new(storage.clone()), "run")
    }

    #[test]
    fn one_program_saves_to_a_directory() {
        let storage = MemoryStorage::new();
        let (one, other) = (at(&storage), at(&storage));
        let state = State::example();
        state.save(&one, 1, 1).unwrap();
        one.lock().unwrap();
        // Again, and by a clone, which is the same program.
        one.clone().lock().unwrap();
        let refused: [(&str, Result<(), CheckpointError>); 4] = [
            ("lock", other.lock()),
            ("prune", other.prune(KEEP).map(drop)),
            ("remove", other.remove(1)),
            ("set aside", other.set_aside_after(None).map(drop)),
        ];
        for (what, refused) in refused {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, CheckpointError::Taken { .. }),
                "{what}: {error}"
            );
            let text = error.to_string();
            assert!(
                text.contains("run") && text.contains("choose another"),
                "{text}"
            );
        }
        // Reading goes on, and nothing has changed.
        state.assert_is(&other.open_latest().unwrap().unwrap().1, Default::default());
        drop(one);
        other.lock().unwrap();
    }

    #[test]
    fn what_is_left_is_removed_at_the_start_and_nothing_else_ever() {
        let storage = MemoryStorage::new();
        let id = SaveId::new(7);
        let others = [
            ".tmp-x".to_owned(),
            ".tmp-step-1-removed".to_owned(),
            format!(".tmp-step-0000000001-{id}0"),
            ".tmp-step-0000000001-mine".to_owned(),
            "step-notes".to_owned(),
        ];
        let left = [
            temporary_name(1, &id.to_string()),
            temporary_name(2, REMOVED),
        ];
        for name in others.iter().chain(&left) {
            storage.create_dir(&Path::new("run").join(name)).unwrap();
        }
        let run = at(&storage);
        let state = State::example();
        state.save(&run, 3, 3).unwrap();
        run.lock().unwrap();
        let mut expected: Vec<String> = others.to_vec();
        expected.push(step_name(3));
        expected.sort();
        assert_eq!(names(&storage, "run"), expected);
        // Of another program that saves without the lock, as the processes of a program do.
        let under_way = at(&storage).save(5, id).map(drop);
        under_way.unwrap();
        state.save(&run, 4, 4).unwrap();
        assert_eq!(run.prune(KEEP).unwrap(), [3]);
        let mut expected: Vec<String> = others.to_vec();
        expected.extend([step_name(4), temporary_name(5, &id.to_string())]);
        expected.sort();
        assert_eq!(names(&storage, "run"), expected);
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_removed_stops_nothing() {
        let root = tempfile::tempdir().unwrap();
        let run = Checkpoints::at(root.path());
        let state = State::example();
        for step in 1..=4 {
            state.save(&run, step, step.into()).unwrap();
        }
        // In the way of one of them: its new name is taken.
        let blocked = root.path().join(temporary_name(2, REMOVED));
        run.lock().unwrap();
        std::fs::write(&blocked, "").unwrap();
        let error = run.prune(KEEP).unwrap_err().to_string();
        assert!(error.contains("step-0000000002"), "{error}");
        assert_eq!(run.steps().unwrap(), [2, 4]);
        // The next time, and at the next start, it is tried again.
        std::fs::remove_file(&blocked).unwrap();
        assert_eq!(run.prune(KEEP).unwrap(), [2]);
        drop(run);
        std::fs::write(&blocked, "no directory").unwrap();
        let left = root.path().join(temporary_name(9, REMOVED));
        std::fs::create_dir(&left).unwrap();
        let run = Checkpoints::at(root.path());
        run.lock().unwrap();
        assert!(blocked.exists() && !left.exists());
        let text = std::fs::read_to_string(root.path().join(LOCK)).unwrap();
        let own = format!("process {} on ", std::process::id());
        assert!(text.starts_with(&own), "{text}");
        let error = Checkpoints::at(root.path()).lock().unwrap_err().to_string();
        assert!(error.contains(&own), "{error}");
    }

    #[test]
    fn later_steps_are_set_aside_and_saved_again() {
        let storage = MemoryStorage::new();
        let run = at(&storage);
        for (step, id) in [(10, 1), (20, 2), (30, 3)] {
            State::seeded(step).save(&run, step, id).unwrap();
        }
        let moved = run.set_aside_after(Some(10)).unwrap();
        let path = |name: &str| Path::new("run").join(name);
        let expected = [20, 30].map(|step| (step, path(&format!("aside-{}", step_name(step)))));
        assert_eq!(moved, expected);
        assert_eq!(run.set_aside_after(Some(10)).unwrap(), []);
        State::seeded(5).save(&run, 20, 4).unwrap();
        // What was set aside before stays too.
        let moved = run.set_aside_after(None).unwrap();
        let names: Vec<_> = moved
            .iter()
            .map(|(_, path)| path.file_name().unwrap())
            .collect();
        assert_eq!(names, ["aside-step-0000000010", "aside-step-0000000020-2"]);
        assert_eq!(run.steps().unwrap(), [0; 0]);
        let aside = crate::Checkpoint::open_on(Arc::new(storage), path("aside-step-0000000030"));
        State::seeded(30).assert_is(&aside.unwrap(), Default::default());
    }
}
