//! Writing a model so that [`super::load`], and Hugging Face's own library, read it.

use std::path::Path;

use burn_core::tensor::Device;

use super::error::FolderError;
use super::limits::SHARD_BYTES;
use super::model::InFolders;
use super::origin::Origin;
use crate::checkpoint::hf::{self, Export};
use crate::checkpoint::{NonFinite, StateError};

/// Writes `config.json`, `tokenizer.json` and `model.safetensors` into a folder, which is made if need be; several
/// files of tensors and their index, if one would be larger than 5 GB.
///
/// A model that came from a folder takes along what it brought, its `origin`: `config.json` as it was, every tensor in
/// the type that it had there (8 bits, with the factors of blocks, too), a tensor that is another one not twice, and
/// the files of the tokenizer. One that was made here is written in the type of its parameters. Of `own` are those of
/// the files beside the weights that it has not brought.
///
/// An earlier model there is whole until the new one is. One tensor at a time is held in memory.
///
/// # Communication
/// All processes call it, and all learn how it ended; the first one writes, and returns which values are not finite.
/// # Errors
/// [`FolderError::Range`]; why a file cannot be written, or a parameter not be read.
pub fn save<M: InFolders>(
    model: &M,
    config: &M::Config,
    own: Vec<(String, Vec<u8>)>,
    origin: Option<&Origin>,
    dir: &Path,
    device: &Device,
) -> Result<Option<NonFinite>, FolderError> {
    let mut export = Export {
        shard_bytes: Some(SHARD_BYTES),
        ..Export::default()
    };
    if let Some(origin) = origin {
        export.dtypes.clone_from(&origin.dtypes);
        export.float8.clone_from(&origin.float8);
        export.others = origin.files();
    }
    let brought = |name: &String, others: &[(String, Vec<u8>)]| {
        others.iter().any(|(brought, _)| brought == name)
    };
    for (name, bytes) in own {
        if !brought(&name, &export.others) {
            export.others.push((name, bytes));
        }
    }
    hf::save(model, &M::names(config), dir, &export, device).map_err(|error| match error {
        StateError::Range { name, dtype } => FolderError::Range { name, dtype },
        error => error.into(),
    })
}
