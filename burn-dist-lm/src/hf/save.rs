//! Writing a model so that [`super::load`], and Hugging Face's own library, read it.

use std::path::Path;

use burn::tensor::Device;
use burn_dist::checkpoint::hf::{self, Export};
use burn_dist::checkpoint::{NonFinite, StateError};

use super::config::HfConfig;
use super::folder::names;
use super::{HfError, Origin};
use crate::data::tokenizer::Text;
use crate::model::{Llama, LlamaConfig};

/// Hugging Face takes no larger files.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes `config.json`, `tokenizer.json` and `model.safetensors` into a folder, which is made if need be; several
/// files of tensors and their index, if one would be larger than 5 GB.
///
/// A model that came from a folder takes along what it brought, its `origin`: `config.json` as it was, every tensor in
/// the type that it had there (8 bits, with the factors of blocks, too), an output that is the embedding not twice, and
/// the files of the tokenizer. One that was made here is written in the type of its parameters.
///
/// An earlier model there is whole until the new one is. One tensor at a time is held in memory.
///
/// # Communication
/// All processes call it, and all learn how it ended; the first one writes, and returns which values are not finite.
/// # Errors
/// [`HfError::Range`]; [`HfError::Tokenizer`]; why a file cannot be written, or a parameter not be read.
pub fn save(
    model: &Llama,
    config: &LlamaConfig,
    text: &Text,
    origin: Option<&Origin>,
    dir: &Path,
    device: &Device,
) -> Result<Option<NonFinite>, HfError> {
    let json = match origin {
        Some(origin) => serde_json::to_string_pretty(&origin.config),
        None => serde_json::to_string_pretty(&HfConfig::from_llama(config, text.end())),
    };
    let json = json.expect("plain fields always have a JSON form") + "\n";
    let mut others = vec![("config.json".to_string(), json.into_bytes())];
    let mut export = Export {
        shard_bytes: Some(SHARD_BYTES),
        ..Export::default()
    };
    if let Some(origin) = origin {
        export.dtypes.clone_from(&origin.dtypes);
        export.float8.clone_from(&origin.float8);
        others.extend(origin.companions.iter().cloned());
    }
    let tokenizer = "tokenizer.json";
    if !others.iter().any(|(name, _)| name == tokenizer) {
        others.push((tokenizer.to_string(), text.to_json()?.into_bytes()));
    }
    export.others = others;
    hf::save(model, &names(config), dir, &export, device).map_err(|error| match error {
        StateError::Range { name, dtype } => HfError::Range { name, dtype },
        error => error.into(),
    })
}
