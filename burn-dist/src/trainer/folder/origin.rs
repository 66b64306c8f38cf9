//! The files that a model brought along besides its weights, and takes along when it is saved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::error::FolderError;
use super::limits::{BESIDE_BYTES_MAX, CONFIG_BYTES_MAX};
use crate::checkpoint::hf::Folder;
use crate::mesh::DType;
use crate::train::files::{self, JsonError};

/// Files beside the weights that say how they are used, as bytes: this program needs the first, others need all.
const COMPANIONS: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// All of a model from a folder that is not trained: its settings as they were written, the types of its tensors, and
/// the files beside them.
#[derive(Debug, Clone)]
pub struct Origin {
    config: Map<String, Value>,
    /// The types of tensors, by name.
    pub(super) dtypes: BTreeMap<String, DType>,
    /// The names of tensors in 8 bits.
    pub(super) float8: BTreeSet<String>,
    companions: Vec<(String, Vec<u8>)>,
}

impl Origin {
    /// Reads it of a folder.
    ///
    /// # Errors
    /// [`FolderError::Json`]; as [`super::load()`], why a file of weights cannot be read.
    pub fn read(dir: &Path) -> Result<Self, FolderError> {
        let read = |name: &str| {
            let path = dir.join(name);
            let bytes = files::read(&path, BESIDE_BYTES_MAX);
            bytes.map_err(|source| JsonError::Read { path, source })
        };
        let config = files::read_json(&dir.join("config.json"), CONFIG_BYTES_MAX)?;
        let mut companions = Vec::new();
        for name in COMPANIONS {
            if dir.join(name).exists() {
                companions.push((name.to_string(), read(name)?));
            }
        }
        let folder = Folder::open(dir)?;
        let float8 = folder.tensors().map(|(name, ..)| name.to_string());
        let float8 = float8.filter(|name| folder.is_float8(name)).collect();
        let dtypes = folder.tensors();
        let dtypes = dtypes.filter_map(|(name, dtype, _)| Some((name.to_string(), dtype?)));
        Ok(Self {
            config,
            dtypes: dtypes.collect(),
            float8,
            companions,
        })
    }

    /// Returns the files beside the weights, the settings as they were written.
    pub(super) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let json = serde_json::to_string_pretty(&self.config);
        let json = json.expect("what was read as JSON is written as such") + "\n";
        let mut files = vec![("config.json".to_string(), json.into_bytes())];
        files.extend(self.companions.iter().cloned());
        files
    }

    /// Returns the files that lie beside weights, settings and what a tokenizer has; `dtype` is the type of all of
    /// them, if they have one.
    pub fn beside(&self, dtype: Option<DType>) -> Vec<(String, Vec<u8>)> {
        let mut config = self.config.clone();
        // Weights in 8 bits would be described there, and these are none.
        config.remove("quantization_config");
        let name = match dtype {
            Some(DType::F64) => Some("float64"),
            Some(DType::F32) => Some("float32"),
            Some(DType::F16) => Some("float16"),
            Some(DType::BF16) => Some("bfloat16"),
            _ => None,
        };
        for field in ["torch_dtype", "dtype"] {
            if let (Some(value), Some(name)) = (config.get_mut(field), name) {
                *value = name.into();
            }
        }
        let config = format!("{:#}\n", Value::Object(config));
        let mut files = vec![("config.json".to_string(), config.into_bytes())];
        files.extend(self.companions.iter().cloned());
        files
    }
}
