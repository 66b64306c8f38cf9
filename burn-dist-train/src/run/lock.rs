//! One running program has a folder: a lock of the system on a file, which ends with the program.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use super::{Begin, RunError, RunFolder};
use crate::files;

/// A claim of this program to a [`RunFolder`], for as long as this lives.
#[derive(Debug)]
pub struct RunLock {
    goes_on: bool,
    /// It stays when the folder is released: to remove it, another program could hold one that nobody sees.
    file: File,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Closing it is not enough: a process that is being started has it open until it runs its own program. It fails
        // where there are no locks.
        let _ = self.file.unlock();
    }
}

impl RunFolder {
    /// Makes the folder and takes it for this program until the result is dropped, or the program ends however it does.
    ///
    /// On a file system without locks a warning is logged, and nobody is kept out.
    ///
    /// # Errors
    /// [`RunError::Taken`] if another running program has it, [`RunError::Begun`] if it is to be [`Begin::New`] and has
    /// a run's figures or checkpoints, [`RunError::Unusable`] if it cannot be made or written to.
    pub fn lock(&self, begin: Begin) -> Result<RunLock, RunError> {
        RunLock::take(self, begin)
    }
}

impl RunLock {
    fn take(folder: &RunFolder, begin: Begin) -> Result<Self, RunError> {
        let root = folder.path();
        let unusable = |path: &Path| {
            let path = path.to_path_buf();
            move |source| RunError::Unusable { path, source }
        };
        std::fs::create_dir_all(root).map_err(unusable(root))?;
        let path = root.join("run.lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(unusable(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(RunError::Taken {
                    root: root.to_path_buf(),
                    holder: holder(&mut file),
                });
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(
                    "{}: its file system has no locks, so nothing keeps a second program out",
                    root.display()
                );
            }
            Err(TryLockError::Error(error)) => return Err(unusable(&path)(error)),
        }
        let found = folder.found()?;
        if let (Begin::New, Some(found)) = (begin, found.clone()) {
            return Err(RunError::Begun { found });
        }
        // What programs have left that ended while they wrote it.
        files::sweep(root, |_| true);
        let text = format!(
            "process {} on {}\n",
            std::process::id(),
            gethostname::gethostname().display()
        );
        // Read by people and by whoever is refused: a full disk is no reason to refuse a run that goes on.
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::warn!("{}: cannot say who has the run: {error}", path.display());
        }
        Ok(Self {
            goes_on: found.is_some(),
            file,
        })
    }

    /// Returns whether an earlier program left files of the run.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }
}

/// Returns the program that has the folder, by what the file says.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // Where a lock keeps readers out too, nobody can say.
    let read = file.take(1 << 10).read_to_string(&mut text);
    match text.lines().next() {
        Some(line) if read.is_ok() && line.starts_with("process ") => line.to_string(),
        _ => "another program".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(folder: &RunFolder, begin: Begin) -> String {
        folder.lock(begin).unwrap_err().to_string()
    }

    #[test]
    fn one_program_has_a_folder() {
        let root = tempfile::tempdir().unwrap();
        // It is made, with the folders above it.
        let folder = RunFolder::at(root.path().join("runs/first"));
        let lock = folder.lock(Begin::New).unwrap();
        assert!(!lock.goes_on());
        for begin in [Begin::New, Begin::OrGoOn] {
            let error = refused(&folder, begin);
            let holder = format!("belongs to process {} on ", std::process::id());
            assert!(error.contains(&holder), "{error}");
            assert!(error.contains("choose another folder"), "{error}");
        }
        drop(lock);
        // A run that left nothing has not begun.
        assert!(!folder.lock(Begin::New).unwrap().goes_on());
    }

    #[test]
    fn a_folder_is_released_while_processes_start() {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(root.path());
        let lock = folder.lock(Begin::New).unwrap();
        // As such a process has it.
        let _open = lock.file.try_clone().unwrap();
        drop(lock);
        folder.lock(Begin::New).unwrap();
    }

    #[test]
    fn files_of_a_run_are_gone_on_with_or_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(root.path());
        std::fs::write(folder.config(), "steps = 1").unwrap();
        std::fs::write(folder.metrics(), "").unwrap();
        std::fs::create_dir(folder.checkpoints()).unwrap();
        assert!(!folder.lock(Begin::New).unwrap().goes_on());
        let kinds: [fn(&RunFolder); 3] = [
            |folder| std::fs::write(folder.metrics(), "{\"step\":1}\n").unwrap(),
            |folder| {
                std::fs::remove_file(folder.metrics()).unwrap();
                std::fs::create_dir(folder.tensorboard()).unwrap();
                std::fs::write(folder.tensorboard().join("events"), "").unwrap();
            },
            |folder| {
                std::fs::write(folder.metrics(), "").unwrap();
                std::fs::create_dir(folder.checkpoints().join("step-1")).unwrap();
            },
        ];
        for begin in kinds {
            begin(&folder);
            let error = refused(&folder, Begin::New);
            assert!(error.contains("is of an earlier run"), "{error}");
            assert!(folder.lock(Begin::OrGoOn).unwrap().goes_on());
        }
    }

    #[test]
    fn what_ended_programs_have_left_goes_with_the_lock() {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(root.path());
        let left = root.path().join(".loss.png.1.partial");
        let lock = folder.lock(Begin::New).unwrap();
        std::fs::write(&left, "half").unwrap();
        refused(&folder, Begin::OrGoOn);
        assert!(left.exists(), "who is refused touches nothing");
        drop(lock);
        folder.lock(Begin::New).unwrap();
        assert!(!left.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = refused(&RunFolder::at(file.join("run")), Begin::New);
        assert!(
            error.contains("file/run cannot be the folder of a run"),
            "{error}"
        );
    }
}
