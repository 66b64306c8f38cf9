//! Errors of saving and loading the state of a training run.

use burn_dist_checkpoint::CheckpointError;

use crate::launch::CommError;
use crate::mesh::DType;
use crate::run::Fault;

/// Training state that cannot be saved or loaded.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The files say no.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The mesh has stopped.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The processes cannot ask each other.
    #[error("the processes of a save cannot agree: {0}")]
    Processes(#[from] CommError),
    /// Another process could not do its part.
    #[error("process {process} could not {action} its part of the checkpoint: {reason}")]
    Elsewhere {
        /// Which.
        process: usize,
        /// The action that failed.
        action: &'static str,
        /// Why not.
        reason: String,
    },
    /// A device of no mesh.
    #[error("{device} is no device of a mesh: pass that of one (`DeviceMesh::device`)")]
    NoMesh {
        /// The device.
        device: String,
    },
    /// A mesh that computes nothing.
    #[error("mesh {mesh} is a dry run: it has no values to save and takes none")]
    DryRun {
        /// Its text form.
        mesh: String,
    },
    /// A recorder in one of several processes.
    #[error(
        "a `DistRecorder` is for one process, and the ranks of mesh {mesh} are shared out among several: save with a \
         `Checkpointer`"
    )]
    OneProcess {
        /// Its text form.
        mesh: String,
    },
    /// A name that is used twice.
    #[error("two things are called `{name}`: give each a name of its own")]
    Name {
        /// The name.
        name: String,
    },
    /// Something that cannot be written as text.
    #[error("`{name}` cannot be saved: {reason}")]
    Unsaved {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// There is nothing of that name.
    #[error("the checkpoint has no {kind} `{name}`; it has {found}")]
    NoSuch {
        /// The kind of item that was asked for: a module, a record, or a value.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The names that there are.
        found: String,
    },
    /// It is there, but of another type than what it is loaded into.
    #[error("the checkpoint's `{name}` does not fit what it is loaded into: {reason}")]
    Mismatch {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// It was loaded, and the mesh has stopped since.
    #[error("the checkpoint's `{name}` was loaded, and cannot be read from the mesh: {reason}")]
    Unread {
        /// Its name.
        name: String,
        /// The fault that has stopped the mesh.
        reason: String,
    },
    /// A parameter without a tensor in folders.
    #[error("the parameter {path} has no tensor in the file of names: add a row for it")]
    Unnamed {
        /// Its path.
        path: String,
    },
    /// Values that a type has no place for.
    #[error("{name} has values beyond the range of {dtype}: choose another type")]
    Range {
        /// The tensor.
        name: String,
        /// The type.
        dtype: DType,
    },
    /// The checkpoint has state for parameters that the model does not have.
    #[error("`{name}` has state of {}, and the model has no such parameter", paths.join(", "))]
    Parameters {
        /// The name of the record.
        name: String,
        /// Paths of the parameters.
        paths: Vec<String>,
    },
}

burn_dist_mesh::debug_by_message!(StateError);
