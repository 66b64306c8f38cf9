//! Why there are no adapters.

use std::path::PathBuf;

use thiserror::Error;

use crate::checkpoint::{CheckpointError, StateError};
use crate::train::files::{JsonError, shown};
use crate::trainer::folder::FolderError;

/// Lines of messages: the first, and how many there are.
fn lines(problems: &[String]) -> String {
    const LINES_MAX: usize = 20;
    let first = problems.iter().take(LINES_MAX);
    let first = first.map(|line| format!("\n  {}", shown(line)));
    let more = match problems.len().saturating_sub(LINES_MAX) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    first.chain([more]).collect()
}

/// Adapters that a model cannot have, or that cannot be read or written.
#[derive(Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A target that names no layer.
    #[error(
        "no linear layer is called `{target}`: there are {}, or all-linear",
        names.join(", ")
    )]
    Target {
        /// The name or pattern.
        target: String,
        /// The last names of the layers that there are.
        names: Vec<String>,
    },
    /// `adapter_config.json` cannot be read.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The configuration asks for what there is not here.
    #[error("{}: {field} is {}, and adapters are read whose {field} is {supported}", path.display(), shown(found))]
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
    /// The factors are not those of this model.
    #[error("the adapters of {} are of another base:{}", path.display(), lines(problems))]
    OtherBase {
        /// The folder.
        path: PathBuf,
        /// One line for each tensor that is missing, unexpected or misshapen.
        problems: Vec<String>,
    },
    /// The base cannot be read.
    #[error(transparent)]
    Base(#[from] FolderError),
    /// The file of the factors cannot be read or written.
    #[error(transparent)]
    File(Box<CheckpointError>),
    /// The factors cannot be loaded or saved.
    #[error(transparent)]
    State(Box<StateError>),
}

impl From<CheckpointError> for AdapterError {
    fn from(error: CheckpointError) -> Self {
        Self::File(Box::new(error))
    }
}

impl From<StateError> for AdapterError {
    fn from(error: StateError) -> Self {
        Self::State(Box::new(error))
    }
}

burn_dist_mesh::debug_by_message!(AdapterError);
