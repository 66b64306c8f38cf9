//! Why parameters cannot be converted.

use super::Kind;
use crate::error::CheckpointError;
use burn_dist_mesh::DType;
use std::path::PathBuf;

/// A conversion that cannot be done.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// One side cannot be read, or not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nothing that can be converted.
    #[error(
        "{} is {found}: a checkpoint (a directory with manifest.json, or one of step-...), a folder with \
         model.safetensors or model.safetensors.index.json, a record .mpk and a burnpack .bpk are converted",
        path.display()
    )]
    Unknown {
        /// The path that was to be converted.
        path: PathBuf,
        /// The description of what it is.
        found: String,
    },
    /// The kind of what is to be written is not set.
    #[error(
        "the name {} does not say what is to be written: end it with .mpk or .bpk, or say --to checkpoint, hf, mpk or \
         bpk", path.display()
    )]
    Target {
        /// Where it is to be written.
        path: PathBuf,
    },
    /// There is something where it is to be written.
    #[error("{} is there already: {kind} is not written over it", path.display())]
    Exists {
        /// Where.
        path: PathBuf,
        /// The kind that was to be written.
        kind: Kind,
    },
    /// Names that no row fits.
    #[error("no row of the names fits:\n  {}", names.join("\n  "))]
    NoRow {
        /// The parameters, or the tensors.
        names: Vec<String>,
    },
    /// A module of something that is one module.
    #[error("{found} is one module: leave --module out")]
    NoModules {
        /// The kind that it is.
        found: Kind,
    },
    /// A module that the checkpoint does not have.
    #[error(
        "the checkpoint has nothing under `{module}.`: `burn-dist ckpt inspect` shows what it has"
    )]
    NoModule {
        /// Its name.
        module: String,
    },
    /// Elements of a type that is not known here.
    #[error("{name}: elements of the type {found} are not converted")]
    DType {
        /// The tensor.
        name: String,
        /// The content of its file.
        found: String,
    },
    /// Floats are to get a type that they are not converted to.
    #[error("floats are not converted to {dtype}: choose f64, f32, f16 or bf16")]
    Floats {
        /// The type.
        dtype: DType,
    },
    /// A number that the type has no place for.
    #[error("{key} has values beyond the range of {dtype}: choose another type")]
    Range {
        /// The parameter.
        key: String,
        /// The type that it was to get.
        dtype: DType,
    },
    /// The system gives no random numbers.
    #[error("no id could be made: {0}")]
    Random(String),
}

burn_dist_mesh::debug_by_message!(ConvertError);
