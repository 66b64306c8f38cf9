//! A flight record while it is being written to the disk.

use crate::processes::Answer;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long whoever wants to name the file, or ends, waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A file that a thread of its own writes: a disk that does not answer holds nobody up who has to hear of the fault.
pub(super) struct RecordFile {
    began: Instant,
    is_over: Arc<Answer<bool>>,
    path: Arc<OnceLock<PathBuf>>,
}

impl RecordFile {
    /// Has `write` write it, and say where it is, if it is.
    pub(super) fn begin(write: impl FnOnce() -> Option<PathBuf> + Send + 'static) -> Self {
        let file = Self {
            began: Instant::now(),
            is_over: Arc::default(),
            path: Arc::default(),
        };
        let (is_over, path) = (Arc::clone(&file.is_over), Arc::clone(&file.path));
        let thread = std::thread::Builder::new().name("flight record".into());
        let writing = thread.spawn(move || {
            if let Some(written) = write() {
                // Set once: there is one thread.
                let _ = path.set(written);
            }
            is_over.set(true);
        });
        if let Err(error) = writing {
            tracing::warn!(target: "burn_dist", %error, "no flight record could be written: the system starts no thread");
            file.is_over.set(true);
        }
        file
    }

    /// Returns where it is, once it is written; `None` if it cannot be, or the disk takes longer than a moment.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path_within(PATIENCE.saturating_sub(self.began.elapsed()))
    }

    fn path_within(&self, patience: Duration) -> Option<&Path> {
        self.is_over
            .wait(patience, |is_over| is_over.then_some(()))?;
        self.path.get().map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_write_that_hangs_is_waited_for_a_moment() {
        let (answers, answer) = channel::<PathBuf>();
        let file = RecordFile::begin(move || answer.recv().ok());
        assert_eq!(file.path_within(Duration::ZERO), None);
        answers.send("record.json".into()).expect("it waits");
        let found = file.path_within(Duration::from_secs(20));
        assert_eq!(found, Some(Path::new("record.json")));
        // It may fail, too.
        let file = RecordFile::begin(|| None);
        assert_eq!(file.path_within(Duration::from_secs(20)), None);
    }
}
