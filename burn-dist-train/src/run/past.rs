//! The past of a run, by its lines: whether it has begun, and what it can go on from.

use super::{RunError, RunFolder};
use crate::files;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// A line, as far as it matters here. Figures of a step have no `event`.
#[derive(Deserialize)]
struct Head {
    event: Option<String>,
    step: Option<u64>,
}

impl RunFolder {
    /// Checks that the run of the folder can go on after `done` steps, of which there is a checkpoint, or from its
    /// start without any. Returns the step of the last checkpoint that was saved, if the lines of the run tell of a
    /// later one than that: it is there no more, or is not wanted.
    ///
    /// A run whose checkpoints are gone is not begun anew: that would take its figures away.
    ///
    /// # Errors
    /// [`RunError::Gone`] if there is no checkpoint, and the lines tell of one; [`RunError::Unusable`].
    pub fn check_goes_on(&self, done: Option<u64>) -> Result<Option<u64>, RunError> {
        let path = self.metrics();
        let mut saved = None;
        for line in lines(&path)? {
            // Torn and foreign lines are told by whoever opens the file for writing.
            let Ok(Head { event, step }) = serde_json::from_slice(&line?) else {
                continue;
            };
            match event.as_deref() {
                Some("checkpoint") => saved = step,
                // From its start, or from the checkpoint of this step.
                Some("begin") => saved = step.filter(|step| *step > 0),
                _ => {}
            }
        }
        match (saved, done) {
            (Some(step), None) => Err(RunError::Gone { lines: path, step }),
            (saved, done) => Ok(saved.filter(|saved| done.is_some_and(|done| done < *saved))),
        }
    }

    /// Returns what shows that a run has begun here: figures of a step, or a checkpoint. One that ended before its
    /// first step leaves settings and events.
    pub(super) fn found(&self) -> Result<Option<PathBuf>, RunError> {
        let metrics = self.metrics();
        for line in lines(&metrics)? {
            let line = line?;
            let head: Result<Head, _> = serde_json::from_slice(&line);
            let is_event = head.is_ok_and(|head| head.event.is_some());
            // Part of a line is no figure yet.
            if !is_event && line.ends_with(b"\n") {
                return Ok(Some(metrics));
            }
        }
        // What they show is in the lines too, unless somebody took these away.
        let tensorboard = self.tensorboard();
        if !metrics.exists() && !entries(&tensorboard)?.is_empty() {
            return Ok(Some(tensorboard));
        }
        let checkpoints = self.checkpoints();
        // Each is a directory; what is hidden is none yet.
        let is_checkpoint = |path: &PathBuf| path.is_dir() && !file_name(path).starts_with('.');
        let found = entries(&checkpoints)?.iter().any(is_checkpoint);
        Ok(found.then_some(checkpoints))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Returns what is in a directory; nothing, if there is none.
fn entries(path: &Path) -> Result<Vec<PathBuf>, RunError> {
    let unusable = |source| RunError::Unusable {
        path: path.to_path_buf(),
        source,
    };
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unusable)?,
    };
    let paths = entries.map(|entry| Ok(entry.map_err(unusable)?.path()));
    paths.collect()
}

/// Returns the lines of a file, each with its end; none, if there is no file.
fn lines(path: &Path) -> Result<impl Iterator<Item = Result<Vec<u8>, RunError>> + use<>, RunError> {
    let unusable = {
        let path = path.to_path_buf();
        move |source| RunError::Unusable {
            path: path.clone(),
            source,
        }
    };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        file => Some(BufReader::new(file.map_err(&unusable)?)),
    };
    let mut file = file;
    Ok(std::iter::from_fn(move || {
        let mut line = Vec::new();
        match files::read_line(file.as_mut()?, &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => {
                file = None;
                Some(Err(unusable(error)))
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::Begin;
    use super::*;

    const FAILED: &str = "{\"event\":\"begin\",\"time_unix_ms\":1,\"step\":0}\n\
        {\"event\":\"phase\",\"time_unix_ms\":1,\"steps\":60}\n\
        {\"event\":\"error\",\"time_unix_ms\":2,\"reason\":\"no data\"}\n";

    fn folder(lines: &str) -> (tempfile::TempDir, RunFolder) {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(root.path());
        std::fs::write(folder.metrics(), lines).unwrap();
        (root, folder)
    }

    #[test]
    fn a_run_that_ended_before_its_first_step_blocks_nothing() {
        let (_root, folder) = folder(FAILED);
        std::fs::write(folder.config(), "steps = 60").unwrap();
        // As they are before there are figures.
        std::fs::create_dir(folder.tensorboard()).unwrap();
        std::fs::write(folder.tensorboard().join("events"), "begin").unwrap();
        std::fs::create_dir_all(folder.checkpoints().join(".tmp-step-0000000001-x")).unwrap();
        std::fs::write(folder.checkpoints().join("checkpoints.lock"), "").unwrap();
        for torn in ["", "{\"step\":1,\"tra"] {
            std::fs::write(folder.metrics(), format!("{FAILED}{torn}")).unwrap();
            assert!(!folder.lock(Begin::New).unwrap().goes_on());
        }
        // With figures of a step it has begun, and also if somebody took the lines away.
        let step = format!("{FAILED}{{\"step\":1,\"train/loss\":3.5}}\n");
        std::fs::write(folder.metrics(), step).unwrap();
        let refused = folder.lock(Begin::New).unwrap_err();
        assert!(matches!(refused, RunError::Begun { .. }), "{refused}");
        std::fs::remove_file(folder.metrics()).unwrap();
        let refused = folder.lock(Begin::New).unwrap_err().to_string();
        assert!(
            refused.contains("tensorboard is of an earlier run"),
            "{refused}"
        );
    }

    #[test]
    fn a_run_whose_checkpoints_are_gone_does_not_begin_anew() {
        let begin = |step: u64| format!("{{\"event\":\"begin\",\"step\":{step}}}\n");
        let saved = |step: u64| format!("{{\"event\":\"checkpoint\",\"step\":{step}}}\n");
        let figures = "{\"step\":9,\"train/loss\":3.5}\n{\"event\":\"end\"}\n";
        let check = |lines: String, done| {
            let (_root, folder) = folder(&lines);
            folder
                .check_goes_on(done)
                .map_err(|error| error.to_string())
        };
        // Nothing was saved: it begins anew.
        let none = begin(0) + figures;
        assert_eq!(check(none.clone(), None), Ok(None));
        assert_eq!(check(none, Some(3)), Ok(None));
        let some = begin(0) + &saved(4) + &saved(8) + figures;
        let error = check(some.clone(), None).unwrap_err();
        assert!(error.contains("tells of a checkpoint of step 8"), "{error}");
        assert_eq!(check(some.clone(), Some(8)), Ok(None));
        assert_eq!(check(some.clone(), Some(4)), Ok(Some(8)));
        // What was said before the last begin is the past of another try.
        let resumed = some + &begin(4) + figures;
        assert_eq!(check(resumed.clone(), Some(4)), Ok(None));
        assert!(check(resumed.clone(), None).is_err());
        assert_eq!(check(resumed + &begin(0), None), Ok(None));
        // A line that a program was killed in tells nothing.
        let torn = begin(0) + &saved(4) + "{\"event\":\"checkpoint\",\"st";
        assert_eq!(check(torn, Some(4)), Ok(None));
        let (_root, folder) = folder("");
        std::fs::remove_file(folder.metrics()).unwrap();
        assert_eq!(folder.check_goes_on(None).unwrap(), None);
    }
}
