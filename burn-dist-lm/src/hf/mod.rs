//! Decoders in Hugging Face's form: the settings of `config.json`, and the names of tensors.

mod config;
mod family;
#[cfg(test)]
mod tests;

use std::path::Path;

use burn::tensor::Device;
use burn_dist::checkpoint::NonFinite;
use burn_dist::checkpoint::hf::Names;
use burn_dist::train::tokenizer::{Text, TokenizerError};
use burn_dist::trainer::folder::{self, FolderError, InFolders, Origin, Tied};
use thiserror::Error;

use crate::model::{Llama, LlamaConfig};

impl InFolders for Llama {
    const TIED: Option<Tied> = Some(Tied {
        name: "lm_head.weight",
        of: "model.embed_tokens.weight",
        field: "tie_word_embeddings",
    });

    fn read_config(folder: &Path) -> Result<LlamaConfig, FolderError> {
        config::read_config(folder)
    }

    fn names(config: &LlamaConfig) -> Names {
        let own = family::written(config.options.family).names;
        let text = [include_str!("names.toml"), own].concat();
        let names = Names::parse(&text, &[("head_dim", config.head_dim())]);
        names.expect("the file of names is right, and heads of pairs have an even width")
    }

    fn is_tied(config: &LlamaConfig) -> bool {
        config.tied
    }
}

/// A model that cannot be written to a folder.
#[derive(Error)]
pub enum SaveError {
    /// The tokenizer has no text form.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The folder cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

burn_dist_mesh::debug_by_message!(SaveError);

/// Writes a model and its tokenizer into a folder, as [`folder::save`] says.
///
/// # Communication
/// As [`folder::save`].
/// # Errors
/// [`SaveError`].
pub fn save(
    model: &Llama,
    config: &LlamaConfig,
    text: &Text,
    origin: Option<&Origin>,
    dir: &Path,
    device: &Device,
) -> Result<Option<NonFinite>, SaveError> {
    let own = vec![
        ("config.json".to_string(), config::written(config, text)),
        ("tokenizer.json".to_string(), text.to_json()?.into_bytes()),
    ];
    Ok(folder::save(model, config, own, origin, dir, device)?)
}
