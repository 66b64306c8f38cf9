//! A recorder for what asks for a [`FileRecorder`]: burn-train's `with_file_checkpointer`.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use burn_core::record::{FileRecorder, FullPrecisionSettings, Record, Recorder, RecorderError};
use burn_dist_checkpoint::{CheckpointError, Checkpoints};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::StateError;
use super::load_record::load_record;
use super::opened::LoadOptions;
use super::read::{Reader, Source};
use super::record::{join, part};
use super::write::{Keyed, ask, describe, new_id, plan, write};
use crate::parallel::{MeshBackend, mesh_of};
use crate::record::local_ranks;
use crate::run::Fault;

/// The extension of the files, and that of the directories beside them.
const EXTENSION: &str = "dist";
const TENSORS: &str = "tensors";
/// The version of the files.
const VERSION: u64 = 1;
/// No file is longer: tensors are in the directory.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Records of models, optimizers and schedulers whose tensors no process gathers: for burn-train's
/// `with_file_checkpointer`, and for `save_file` and `load_file` of modules.
///
/// A record is a file, `model-3.dist`, and beside it a directory with its tensors, `model-3.tensors`, written by the
/// ranks. Removing the file removes the record; its directory goes when the next one of that name is recorded.
///
/// Burn's `load_file` and `load_record` leave in a model that was trained on the last update of its running statistics
/// (`BatchNorm`), which replaces later what they have loaded: load into a new model, or call
/// `drop(model.clone().into_record())` before.
///
/// It is for one process with any number of ranks: burn-train records on threads of its own, on which processes cannot
/// agree. In several, a [`Checkpointer`](super::Checkpointer) saves.
///
/// ```
/// use burn::backend::Flex;
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn_dist::checkpoint::DistRecorder;
/// use burn_dist::{DeviceMesh, Dist};
///
/// type B = Dist<Flex>;
/// let directory = std::env::temp_dir().join(format!("burn-dist-recorder-{}", std::process::id()));
/// let device = DeviceMesh::parse("fsdp=2")?.device();
/// let linear: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// linear.clone().save_file(directory.join("linear"), &DistRecorder)?;
/// let other: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let other = other.load_file(directory.join("linear"), &DistRecorder, &device)?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct DistRecorder;

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u64,
    /// Which checkpoint in the directory of tensors is meant, if the record has tensors.
    save: Option<u64>,
    record: Value,
}

impl<B: MeshBackend> Recorder<B> for DistRecorder {
    type Settings = FullPrecisionSettings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn record<R: Record<B>>(&self, record: R, path: PathBuf) -> Result<(), RecorderError> {
        save::<B, R>(record, &with_extension(path)).map_err(unknown)
    }

    fn load<R: Record<B>>(&self, path: PathBuf, device: &B::Device) -> Result<R, RecorderError> {
        let path = with_extension(path);
        match load::<B, R>(&path, device) {
            Err(StateError::Checkpoint(CheckpointError::Missing { .. })) => {
                Err(RecorderError::FileNotFound(path.display().to_string()))
            }
            loaded => loaded.map_err(unknown),
        }
    }

    fn save_item<I: Serialize>(&self, _item: I, path: PathBuf) -> Result<(), RecorderError> {
        Err(only_records(&path))
    }

    fn load_item<I: DeserializeOwned>(&self, path: &mut PathBuf) -> Result<I, RecorderError> {
        Err(only_records(path))
    }
}

impl<B: MeshBackend> FileRecorder<B> for DistRecorder {
    fn file_extension() -> &'static str {
        EXTENSION
    }
}

fn unknown(error: StateError) -> RecorderError {
    RecorderError::Unknown(error.to_string())
}

fn only_records(path: &Path) -> RecorderError {
    RecorderError::Unknown(format!(
        "{}: `DistRecorder` takes records (`record`, `load`): the data of an item have left the ranks already",
        path.display()
    ))
}

/// Returns the path with the extension of this format, in place of another one, as Burn's recorders do.
fn with_extension(mut path: PathBuf) -> PathBuf {
    path.set_extension(EXTENSION);
    path
}

fn save<B: MeshBackend, R: Record<B>>(record: R, path: &Path) -> Result<(), StateError> {
    let parted = part::<B, R>("record", record, &HashMap::new())?;
    let tensors = Checkpoints::at(path.with_extension(TENSORS));
    let write = |action| {
        let path = path.to_path_buf();
        move |source| CheckpointError::Io {
            action,
            path,
            source,
        }
    };
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(write("create the directory of"))?;
    let save = match parted.tensors.is_empty() {
        true => None,
        false => {
            let next = tensors.steps()?.last().map_or(0, |last| last + 1);
            save_here(&tensors, next, &parted.tensors)?;
            Some(next)
        }
    };
    let written = Written {
        version: VERSION,
        save,
        record: parted.text,
    };
    replace(path, &serde_json::to_vec(&written).unwrap_or_default()).map_err(write("write"))?;
    // What the file does not mean any more.
    for step in tensors.steps()? {
        if Some(step) != save {
            tensors.remove(step)?;
        }
    }
    sweep(parent, path);
    Ok(())
}

/// Saves tensors of a mesh that this process has all ranks of.
///
/// # Errors
/// [`StateError`].
fn save_here(checkpoints: &Checkpoints, step: u64, tensors: &[Keyed]) -> Result<(), StateError> {
    let Some(device) = tensors.first().map(|(_, tensor)| tensor.device()) else {
        return Ok(());
    };
    let mesh = device.shape().ok_or_else(|| Fault::ended(&device))?;
    if local_ranks(&device).len() < mesh.num_ranks() {
        let mesh = mesh.to_string();
        return Err(StateError::OneProcess { mesh });
    }
    let plan = plan(mesh, describe(tensors)?)?;
    let writers = ask(&plan, tensors, local_ranks(&device));
    let save = checkpoints.save(step, new_id(checkpoints)?)?;
    match write(&save, &plan, writers, None) {
        Ok(parts) => save.commit(&plan, parts, Map::new()).map(drop)?,
        Err(error) => {
            save.abandon();
            return Err(error.into());
        }
    }
    Ok(())
}

/// Replaces a file at once: it has the old content or the new, and both survive a stop of the machine.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = fs::File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)
}

/// Removes the tensors of records of this name whose file was removed: `model-1.tensors` where `model-3` is recorded.
fn sweep(parent: &Path, path: &Path) {
    let Some((name, _)) = numbered(path) else {
        return;
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for other in entries.map(|entry| entry.path()) {
        let is_tensors = other
            .extension()
            .is_some_and(|extension| extension == TENSORS);
        let is_like = numbered(&other).is_some_and(|(other, _)| other == name);
        if is_tensors
            && is_like
            && !other.with_extension(EXTENSION).exists()
            && let Err(error) = fs::remove_dir_all(&other)
        {
            tracing::warn!(path = %other.display(), %error, "tensors of a removed record stay");
        }
    }
}

/// Returns the name and the number of `NAME-NUMBER.EXTENSION`.
fn numbered(path: &Path) -> Option<(&str, u64)> {
    let (name, number) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    Some((name, number.parse().ok()?))
}

/// Returns the bytes of a record, without its tensors: these are in files of their own.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= RECORD_BYTES_MAX {
        true => Ok(bytes),
        false => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("a record without its tensors has at most {RECORD_BYTES_MAX} bytes"),
        )),
    }
}

fn load<B: MeshBackend, R: Record<B>>(path: &Path, device: &B::Device) -> Result<R, StateError> {
    let bytes = read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::Missing { path: path.into() },
        _ => CheckpointError::Io {
            action: "read",
            path: path.into(),
            source,
        },
    })?;
    let mismatch = |reason: String| StateError::Mismatch {
        name: path.display().to_string(),
        reason,
    };
    let written: Written =
        serde_json::from_slice(&bytes).map_err(|error| mismatch(error.to_string()))?;
    if written.version > VERSION {
        let reason = format!(
            "it has version {}, and this program reads up to {VERSION}: update burn-dist",
            written.version
        );
        return Err(mismatch(reason));
    }
    let Some(save) = written.save else {
        return join::<B, R>("record", written.record, Vec::new(), &[], device);
    };
    let checkpoint = Checkpoints::at(path.with_extension(TENSORS)).open(save)?;
    let (mesh, give) = (mesh_of::<B>(device)?, |parts| B::give(parts, device));
    let source = Source::Checkpoint(&checkpoint);
    let ranks = B::local_ranks(device);
    let reader = Reader::new(source, &mesh, ranks, &give, LoadOptions::default());
    // A module that it is loaded into moves its tensors to where they belong.
    load_record("record", written.record, &[], &checkpoint, &reader, device)
}
