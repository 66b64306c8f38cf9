//! Why a model folder cannot be read or written.

use std::path::PathBuf;

use thiserror::Error;

use crate::checkpoint::{CheckpointError, StateError};
use crate::mesh::DType;
use crate::train::files::{JsonError, shown};

/// Lines of messages: the first, and how many there are.
fn lines(problems: &[String]) -> String {
    const LINES_MAX: usize = 100;
    let first = problems.iter().take(LINES_MAX);
    let first = first.map(|line| format!("\n  {}", shown(line)));
    let more = match problems.len().saturating_sub(LINES_MAX) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    first.chain([more]).collect()
}

/// A model folder that cannot be read or written.
#[derive(Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A JSON file cannot be read, or is not what it should be.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The configuration asks for what this model does not have.
    #[error("{}: {field} is {}, and this model has {supported}", path.display(), shown(found))]
    Unsupported {
        /// The configuration.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The values that would work.
        supported: &'static str,
    },
    /// The configuration is that of a model that is none of those here.
    #[error(
        "{}: there is no model {:?} here; is {nearest} meant? There are {}",
        path.display(), shown(found), known.join(", ")
    )]
    Architecture {
        /// The configuration.
        path: PathBuf,
        /// Its `model_type`.
        found: String,
        /// The one that is most like it.
        nearest: &'static str,
        /// All that there are.
        known: Vec<&'static str>,
    },
    /// Two fields of the configuration contradict each other.
    #[error(
        "{}: {field} is {} and {field_too} is {}: keep the one that is meant",
        path.display(), shown(one), shown(other)
    )]
    Contrary {
        /// The configuration.
        path: PathBuf,
        /// Where the one stands.
        field: &'static str,
        /// Its value.
        one: String,
        /// Where the other stands.
        field_too: &'static str,
        /// The value there.
        other: String,
    },
    /// The sizes of the configuration do not fit each other.
    #[error("{}: {source}", path.display())]
    Sizes {
        /// The configuration.
        path: PathBuf,
        /// Which ones.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tensors of the folder are not those of the model.
    #[error("{} does not hold this model:{}", path.display(), lines(problems))]
    Tensors {
        /// The folder.
        path: PathBuf,
        /// One line for each missing, unexpected or misshapen tensor.
        problems: Vec<String>,
    },
    /// A trained value is beyond the type in which the folder keeps it.
    #[error(
        "{name} has values beyond the range of {dtype}, the type that it came in: convert the model to bf16 or f32 first"
    )]
    Range {
        /// The tensor.
        name: String,
        /// The type.
        dtype: DType,
    },
    /// The files of the folder cannot be read.
    #[error(transparent)]
    Files(Box<CheckpointError>),
    /// The parameters cannot be loaded or saved.
    #[error(transparent)]
    State(Box<StateError>),
}

impl From<CheckpointError> for FolderError {
    fn from(error: CheckpointError) -> Self {
        Self::Files(Box::new(error))
    }
}

impl From<StateError> for FolderError {
    fn from(error: StateError) -> Self {
        Self::State(Box::new(error))
    }
}

burn_dist_mesh::debug_by_message!(FolderError);
