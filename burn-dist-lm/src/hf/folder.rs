//! The small files of a model folder, and the names of its tensors.

use std::path::Path;

use burn_dist::checkpoint::hf::Names;
use burn_dist::train::files;
use serde::de::DeserializeOwned;

use super::HfError;
use crate::files::without_mark;
use crate::model::LlamaConfig;

/// Returns which tensor is which parameter.
pub fn names(config: &LlamaConfig) -> Names {
    let names = Names::parse(
        include_str!("names.toml"),
        &[("head_dim", config.head_dim())],
    );
    names.expect("the file of names is right, and heads of pairs have an even width")
}

/// No settings of a model are longer; what is made of them takes up to a hundred times as much.
pub(super) const CONFIG_BYTES_MAX: u64 = 512 << 10;

/// Reads a JSON file of so many bytes at most.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path, max: u64) -> Result<T, HfError> {
    let bytes = files::read(path, max).map_err(|source| HfError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    serde_json::from_slice(without_mark(&bytes)).map_err(|error| HfError::Json {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })
}
