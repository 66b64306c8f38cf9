//! Which checkpoints of a directory can be gone on from.

use super::checkpoints::{Checkpoints, step_name};
use crate::error::CheckpointError;
use crate::format::MANIFEST;
use crate::load::{Checkpoint, read_manifest};
use serde::de::IgnoredAny;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The checkpoint of a directory to go on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    /// The step of the newest checkpoint, if there is any.
    pub step: Option<u64>,
    /// The reasons why later steps have none: the last first.
    pub passed_over: Vec<PassedOver>,
}

/// A directory that has the name of a checkpoint and is none. No save makes one, whatever interrupts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// The step.
    pub step: u64,
    /// The directory.
    pub path: PathBuf,
    /// The part that it lacks.
    pub lacks: String,
}

/// Text form: `run/step-0000000060 is no checkpoint: it has no manifest`.
impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, lacks) = (self.path.display(), &self.lacks);
        write!(f, "{path} is no checkpoint: {lacks}")
    }
}

/// The content of the directory of a step.
pub(super) enum StepState {
    /// All files of a checkpoint, whose manifest can be read.
    Whole(Checkpoint),
    /// Less than a checkpoint.
    Torn(String),
}

impl Checkpoints {
    /// Returns the step of the newest checkpoint, and what was passed over before it: directories without a
    /// manifest or with a part of one, and such that lack a file or the end of one.
    ///
    /// A checkpoint that is all there and cannot be read is not passed over: to go on from an earlier one is for people
    /// to decide ([`Self::good_before`]).
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn newest(&self) -> Result<Newest, CheckpointError> {
        let mut newest = Newest::default();
        for step in self.steps()?.into_iter().rev() {
            if let Ok(StepState::Torn(lacks)) = self.state(step) {
                let path = self.root().join(step_name(step));
                newest.passed_over.push(PassedOver { step, path, lacks });
                continue;
            }
            newest.step = Some(step);
            break;
        }
        Ok(newest)
    }

    /// Opens the newest checkpoint, if there is any. Whatever is passed over before it is logged: [`Self::newest`].
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open_latest(&self) -> Result<Option<(u64, Checkpoint)>, CheckpointError> {
        let newest = self.newest()?;
        for passed in newest.passed_over {
            tracing::warn!("{passed}; it is passed over");
        }
        newest
            .step
            .map(|step| Ok((step, self.open(step)?)))
            .transpose()
    }

    /// Returns the step of the newest checkpoint from before `step` that is all there, whose manifest can be read, and
    /// all of whose values were finite when it was saved.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn good_before(&self, step: u64) -> Result<Option<u64>, CheckpointError> {
        let steps = self.steps()?.into_iter().rev();
        let mut earlier = steps.filter(|earlier| *earlier < step);
        Ok(earlier.find(|step| match self.state(*step) {
            Ok(StepState::Whole(checkpoint)) => checkpoint.manifest().non_finite().is_none(),
            _ => false,
        }))
    }

    /// Looks at what has the name of a step.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`], of what is there and is no manifest that can be read.
    pub(super) fn state(&self, step: u64) -> Result<StepState, CheckpointError> {
        let torn = |lacks: &str| Ok(StepState::Torn(lacks.to_owned()));
        let path = self.root().join(step_name(step)).join(MANIFEST);
        match self.open(step) {
            Ok(checkpoint) => Ok(match checkpoint.lacks() {
                Some(lacks) => StepState::Torn(lacks),
                None => StepState::Whole(checkpoint),
            }),
            Err(CheckpointError::Missing { .. }) => torn("it has no manifest"),
            Err(CheckpointError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotADirectory =>
            {
                torn("it is no directory")
            }
            // The text of an object that does not end is the part of a manifest.
            Err(error @ CheckpointError::Manifest { .. }) => {
                let bytes = read_manifest(self.storage(), &path).unwrap_or_default();
                match serde_json::from_slice::<IgnoredAny>(&bytes) {
                    Err(json) if json.is_eof() => torn("its manifest ends early"),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::save::Keep;
    use crate::storage::Storage;
    use crate::storage::memory::MemoryStorage;
    use crate::tests::state::State;
    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::sync::Arc;

    /// A state of a step's directory that is no checkpoint, and how it is described.
    type Torn = (fn(&MemoryStorage, &Path), &'static str);

    const TORN: [Torn; 6] = [
        (
            |storage, step| {
                storage.remove_dir(step).unwrap();
                storage.create_dir(step).unwrap();
            },
            "it has no manifest",
        ),
        (
            |storage, step| storage.remove_file(&step.join(MANIFEST)).unwrap(),
            "it has no manifest",
        ),
        (
            |storage, step| storage.corrupt(&step.join(MANIFEST), Vec::clear).unwrap(),
            "its manifest ends early",
        ),
        (
            |storage, step| {
                let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1);
                storage.corrupt(&step.join(MANIFEST), cut).unwrap();
            },
            "its manifest ends early",
        ),
        (
            |storage, step| {
                storage
                    .remove_file(&step.join(file(storage, step)))
                    .unwrap()
            },
            "is not there",
        ),
        (
            |storage, step| {
                let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1);
                storage
                    .corrupt(&step.join(file(storage, step)), cut)
                    .unwrap();
            },
            " bytes",
        ),
    ];

    fn file(storage: &MemoryStorage, step: &Path) -> String {
        let names = storage.list(step).unwrap();
        names.into_iter().find(|name| name != MANIFEST).unwrap()
    }

    #[test]
    fn what_is_no_checkpoint_is_passed_over_kept_and_set_aside() {
        for (tear, said) in TORN {
            let storage = MemoryStorage::new();
            let run = Checkpoints::on(Arc::new(storage.clone()), "run");
            let (old, new) = (State::example(), State::seeded(3));
            old.save(&run, 10, 1).unwrap();
            new.save(&run, 20, 2).unwrap();
            let step = Path::new("run").join(step_name(20));
            tear(&storage, &step);
            let newest = run.newest().unwrap();
            assert_eq!(newest.step, Some(10), "{said}");
            assert_eq!(newest.passed_over.len(), 1);
            let text = newest.passed_over[0].to_string();
            assert!(
                text.starts_with("run/step-0000000020 is no checkpoint: "),
                "{text}"
            );
            assert!(text.ends_with(said), "{text}");
            let (found, checkpoint) = run.open_latest().unwrap().unwrap();
            assert_eq!(found, 10);
            old.assert_is(&checkpoint, Default::default());
            // It does not count as one of the last: the only checkpoint stays.
            new.save(&run, 15, 3).unwrap();
            let keep = Keep {
                last: NonZeroUsize::MIN,
                every: None,
            };
            assert_eq!(run.prune(keep).unwrap(), [10]);
            assert_eq!(run.newest().unwrap().step, Some(15));
            // Its step is saved again, and what was there is still to be seen.
            new.save(&run, 20, 4).unwrap();
            new.assert_is(&run.open(20).unwrap(), Default::default());
            let names = crate::tests::names(&storage, "run");
            assert_eq!(
                names,
                [
                    "aside-step-0000000020",
                    "step-0000000015",
                    "step-0000000020"
                ],
                "{said}"
            );
        }
    }

    #[test]
    fn what_is_there_and_damaged_is_not_passed_over() {
        let storage = MemoryStorage::new();
        let run = Checkpoints::on(Arc::new(storage.clone()), "run");
        assert_eq!(run.newest().unwrap(), Newest::default());
        for step in [10, 20, 30] {
            State::example().save(&run, step, step.into()).unwrap();
        }
        let manifest = Path::new("run").join(step_name(30)).join(MANIFEST);
        // In a text, so that it is JSON as before.
        let text = |bytes: &mut Vec<u8>| {
            const ID: &[u8] = b"\"save_id\":\"";
            let at = bytes.windows(ID.len()).position(|part| part == ID);
            bytes[at.unwrap() + ID.len()] = b'f';
        };
        storage.corrupt(&manifest, text).unwrap();
        let newest = run.newest().unwrap();
        assert_eq!((newest.step, newest.passed_over.len()), (Some(30), 0));
        let error = run.open_latest().err().unwrap();
        assert!(matches!(error, CheckpointError::Manifest { .. }), "{error}");
        assert_eq!(run.good_before(30).unwrap(), Some(20));
        assert_eq!(run.good_before(20).unwrap(), Some(10));
        assert_eq!(run.good_before(10).unwrap(), None);
    }
}
