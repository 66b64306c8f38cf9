//! Models in Hugging Face's form: a folder with `config.json`, `*.safetensors` (with an index if there are several) and
//! `tokenizer.json`.

mod config;
mod load;
mod origin;
mod save;

pub use config::read_config;
pub use load::{load, load_reported};
pub use origin::Origin;
pub use save::save;

use std::path::PathBuf;

use burn_dist::checkpoint::hf::Names;
use burn_dist::checkpoint::{CheckpointError, StateError};
use burn_dist::mesh::DType;
use thiserror::Error;

use crate::data::tokenizer::TokenizerError;
use crate::model::{ConfigError, LlamaConfig};

/// Returns which tensor is which parameter.
fn names(config: &LlamaConfig) -> Names {
    let names = Names::parse(
        include_str!("names.toml"),
        &[("head_dim", config.head_dim())],
    );
    names.expect("the file of names is right, and heads of pairs have an even width")
}

/// A model folder that cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HfError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A JSON file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The configuration asks for what this model does not have.
    #[error("{}: {field} is {found}, and this model has {supported}", path.display())]
    Unsupported {
        /// The configuration.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What would work.
        supported: &'static str,
    },
    /// The sizes of the configuration do not fit each other.
    #[error("{}: {source}", path.display())]
    Sizes {
        /// The configuration.
        path: PathBuf,
        /// Which ones.
        source: ConfigError,
    },
    /// The tensors of the folder are not those of the model.
    #[error("{} does not hold this model:{}", path.display(), problems.iter().map(|line| format!("\n  {line}")).collect::<String>())]
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
    /// The tokenizer cannot be written.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The files of the folder cannot be read.
    #[error(transparent)]
    Files(#[from] CheckpointError),
    /// The parameters cannot be loaded or saved.
    #[error(transparent)]
    State(#[from] StateError),
}

#[cfg(test)]
mod tests;
