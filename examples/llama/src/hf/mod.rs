//! Models in Hugging Face's form: a folder with `config.json`, `*.safetensors` (with an index if there are several) and
//! `tokenizer.json`.

mod config;
mod load;
mod names;
mod origin;
mod save;

pub use config::read_config;
pub use load::load;
pub use origin::Origin;
pub use save::{check_folder, read_along, save};

use std::path::PathBuf;

use thiserror::Error;

use crate::model::ConfigError;

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
    /// A file cannot be written; what was there before is untouched.
    #[error("cannot write {}: {source}; nothing of an earlier model there was changed", path.display())]
    Write {
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
    /// A file is no safetensors file.
    #[error("{} is no readable safetensors file: {reason}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The folder holds no tensors.
    #[error(
        "{} holds neither model.safetensors nor model.safetensors.index.json: \
         other formats must be converted first",
        path.display()
    )]
    NoTensors {
        /// The folder.
        path: PathBuf,
    },
    /// The tensors of the folder are not those of the model.
    #[error("{} does not hold this model:{}", path.display(), problems.iter().map(|line| format!("\n  {line}")).collect::<String>())]
    Tensors {
        /// The folder.
        path: PathBuf,
        /// One line for each missing, unexpected or misshapen tensor.
        problems: Vec<String>,
    },
    /// The folder holds another model, whose files would be read instead of what is written.
    #[error(
        "{} holds a model in several files, and what is saved here would not be read beside them: choose another \
         folder",
        path.display()
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// A trained value is beyond the type in which the checkpoint keeps it.
    #[error(
        "{name} has values beyond 65,504, the highest of F16, the type that it came in: convert the checkpoint to BF16 \
         or F32 first"
    )]
    Range {
        /// The tensor.
        name: String,
    },
    /// A parameter cannot be read from the device.
    #[error("cannot read {name} from the device: {reason}")]
    Device {
        /// The tensor.
        name: String,
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests;
