//! Errors of checkpoints.

use crate::format::{Checksum, HeaderError, ManifestError, SaveId};
use crate::hf::FolderProblem;
use crate::load::KeyReport;
use crate::records::RecordProblem;
use crate::region::RegionError;
use crate::stored::Form;
use burn_dist_mesh::DType;
use std::io;
use std::path::PathBuf;

/// A checkpoint that cannot be saved or loaded.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refuses.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no checkpoint.
    #[error("there is no checkpoint at {}: it has no manifest", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is a checkpoint where one is to be saved.
    #[error("there is a checkpoint at {}: save under another step, or remove it first", path.display())]
    Exists {
        /// Where it is.
        path: PathBuf,
    },
    /// Another program saves to the directory.
    #[error(
        "{holder}, which is running, saves its checkpoints in {}: wait for its end, or choose another directory",
        root.display()
    )]
    Taken {
        /// The directory.
        root: PathBuf,
        /// The other program.
        holder: String,
    },
    /// The manifest cannot be read, or makes no sense.
    #[error("the manifest {} cannot be used: {source}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Why not.
        source: Box<ManifestError>,
    },
    /// A file is not the one that the manifest means.
    #[error("the file {} cannot be used: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: FileProblem,
    },
    /// Bytes of a file have changed.
    #[error(
        "{}: block {block} of the tensor {key}, {bytes} bytes at {offset}, has the checksum {found} instead of \
         {expected}: it is damaged", path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// Which block of the piece.
        block: usize,
        /// Where it starts in the file.
        offset: u64,
        /// Its size.
        bytes: usize,
        /// The checksum in the manifest.
        expected: Checksum,
        /// The checksum of the bytes.
        found: Checksum,
    },
    /// Tensors that are asked for are not those that there are.
    #[error("{0}")]
    Keys(Box<KeyReport>),
    /// A tensor that is asked for twice, or saved twice.
    #[error("the tensor {key} is there twice")]
    DuplicateKey {
        /// The tensor.
        key: String,
    },
    /// A key that is no path.
    #[error("`{key}` cannot name a tensor: leave out brackets and control characters")]
    Key {
        /// The key.
        key: String,
    },
    /// Numbers that are no part of a tensor.
    #[error("{key}: {source}")]
    Region {
        /// The tensor.
        key: String,
        /// The fault.
        source: RegionError,
    },
    /// A region of another tensor.
    #[error("{key} has {expected} elements, and the region lies in a tensor of {found}")]
    Grid {
        /// The tensor.
        key: String,
        /// How many elements it has.
        expected: usize,
        /// How many the tensor of the region has.
        found: usize,
    },
    /// A buffer of another size.
    #[error("{key}: {expected} bytes are needed, and there are {found}")]
    Bytes {
        /// The tensor.
        key: String,
        /// How many are needed.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A layout that no tensor on this mesh has.
    #[error("{key}: {source}")]
    Layout {
        /// The tensor.
        key: String,
        /// The fault.
        source: burn_dist_layout::LayoutError,
    },
    /// A tensor whose ranks hold terms of a sum.
    #[error("{key} is partial, `{layout}`: reduce it before it is saved")]
    Partial {
        /// The tensor.
        key: String,
        /// Its layout.
        layout: String,
    },
    /// A type that a checkpoint cannot hold.
    #[error("{key}: a checkpoint holds no {dtype}: save the bytes and the scales as tensors")]
    DType {
        /// The tensor.
        key: String,
        /// Its type.
        dtype: DType,
    },
    /// A type that there is not here.
    #[error("{key}: its elements are of the type {found}, which is not known here")]
    UnknownDType {
        /// The tensor.
        key: String,
        /// The content of its file.
        found: String,
    },
    /// A parameter that cannot be held like that.
    #[error(
        "{key}: a parameter of shape {shape:?} cannot be held {form}: that is for [input, output] and [output], of \
         whole heads of an even width if rotary"
    )]
    Form {
        /// The tensor.
        key: String,
        /// How it would hold the parameter.
        form: Form,
        /// The shape of the parameter.
        shape: Vec<usize>,
    },
    /// There is no model.
    #[error(
        "there is no model at {}: it has neither model.safetensors nor model.safetensors.index.json", path.display()
    )]
    NoModel {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file of a folder in Hugging Face's form cannot be used, or written.
    #[error("the file {} cannot be used: {problem}", path.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: FolderProblem,
    },
    /// A record of Burn cannot be used, or written.
    #[error("the record {} cannot be used: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: RecordProblem,
    },
    /// A stage that the mesh does not have.
    #[error("{key} is on stage {stage} of a mesh with {stages}")]
    Stage {
        /// The tensor.
        key: String,
        /// Its stage.
        stage: usize,
        /// How many there are.
        stages: usize,
    },
    /// Not one writer for each rank, or writers without ranks.
    #[error(
        "{ranks} ranks have writers {writers:?}: give every rank one, numbered from 0 without gaps"
    )]
    Writers {
        /// How many ranks the mesh has.
        ranks: usize,
        /// Their writers.
        writers: Vec<usize>,
    },
    /// A file cannot be described.
    #[error("the file of writer {writer} cannot be written: {source}")]
    Header {
        /// The writer.
        writer: usize,
        /// Why not.
        source: HeaderError,
    },
    /// A tensor that is saved could not be had.
    #[error("the tensor {key} could not be read: {source}")]
    Source {
        /// The tensor.
        key: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The parts that are to be committed do not make up the checkpoint.
    #[error("the parts do not make up the checkpoint: {0}")]
    Parts(PartsProblem),
    /// Another save is in progress.
    #[error("another save is under way: wait for it")]
    Busy,
    /// The thread that saved has panicked.
    #[error("the thread that saved has panicked")]
    Panicked,
}

burn_dist_mesh::debug_by_message!(CheckpointError);

/// Why a file is not the one that the manifest means.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// It is shorter or longer.
    #[error("it has {found} bytes instead of {expected}: it was cut, or is of another save")]
    Size {
        /// The size in the manifest.
        expected: u64,
        /// How many it has.
        found: u64,
    },
    /// It is of another save.
    #[error(
        "it is of the save {found} and the manifest of {expected}: files of two saves are mixed up"
    )]
    MixedUp {
        /// The save of the manifest.
        expected: SaveId,
        /// The save of the file.
        found: String,
    },
    /// Its header is not that of a safetensors file.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Its header has changed.
    #[error("its header has the checksum {found} instead of {expected}: it is damaged")]
    Checksum {
        /// The checksum in the manifest.
        expected: Checksum,
        /// The checksum of the header.
        found: Checksum,
    },
    /// Its header says other things of a piece than the manifest.
    #[error("its header does not have the piece {name} as the manifest does")]
    Piece {
        /// The name of the piece.
        name: String,
    },
    /// It is in the directory, and not in the manifest.
    #[error("it is not in the manifest")]
    Unexpected,
}

burn_dist_mesh::debug_by_message!(FileProblem);

/// Why parts do not make up a checkpoint.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartsProblem {
    /// One is not there.
    #[error("that of writer {writer} is missing, of {writers}")]
    Missing {
        /// Whose.
        writer: usize,
        /// How many there are.
        writers: usize,
    },
    /// One is there twice, or of a writer that there is not.
    #[error("that of writer {writer} is there twice, or one too many")]
    Unexpected {
        /// Whose.
        writer: usize,
    },
    /// One is of another save.
    #[error("that of writer {writer} is of the save {found} instead of {expected}")]
    MixedUp {
        /// Whose.
        writer: usize,
        /// The save that is committed.
        expected: SaveId,
        /// The save of the part.
        found: SaveId,
    },
    /// Its writer had other tensors in mind.
    #[error("writer {writer} planned other pieces: give every process the same tensors")]
    Planned {
        /// Whose.
        writer: usize,
    },
}

burn_dist_mesh::debug_by_message!(PartsProblem);

/// Says what was tried on which path, for `map_err`.
pub(crate) fn io_error(
    action: &'static str,
    path: &std::path::Path,
) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_path_buf();
    move |source| CheckpointError::Io {
        action,
        path,
        source,
    }
}
