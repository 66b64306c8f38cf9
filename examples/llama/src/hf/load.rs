//! Weights from `*.safetensors`: mapped, and turned into parameters one tensor at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData, bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::HfError;
use super::names::{EMBEDDING, Entry, OUTPUT, PathStack, entries, stored_as};
use super::origin::Dtypes;
use crate::model::{Llama, LlamaConfig};

/// Tensors that older checkpoints hold and no model needs: they follow from the configuration.
const IGNORED: &str = "rotary_emb.inv_freq";

/// Replaces every parameter of the model by the checkpoint's.
///
/// The folder's tensors are compared with the model's before any is read. A parameter that has no value yet is given
/// one directly, without making random values first; one that is laid out over a mesh keeps its layout.
///
/// # Errors
/// [`HfError::Tensors`] with every missing, unexpected or misshapen tensor; or why a file cannot be read.
pub fn load<B: Backend>(
    model: Llama<B>,
    config: &LlamaConfig,
    dir: &Path,
) -> Result<Llama<B>, HfError> {
    let checkpoint = Checkpoint::open(dir)?;
    checkpoint.check(&entries(&model, config.head_dim()), config.tied)?;
    let mut loader = Loader {
        checkpoint,
        path: PathStack::default(),
        head_dim: config.head_dim(),
    };
    Ok(model.map(&mut loader))
}

/// Returns the types of a folder's tensors, by name.
///
/// # Errors
/// Why a file cannot be read.
pub(super) fn dtypes(dir: &Path) -> Result<Dtypes, HfError> {
    let tensors = Checkpoint::open(dir)?.tensors;
    let dtypes = tensors.into_iter();
    Ok(dtypes.map(|(name, stored)| (name, stored.dtype)).collect())
}

/// Where a tensor's bytes are.
#[derive(Debug, Clone)]
struct Stored {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Byte range in the file.
    bytes: std::ops::Range<usize>,
}

/// A folder's mapped files and the tensors in them.
#[derive(Debug)]
struct Checkpoint {
    dir: PathBuf,
    maps: Vec<Mmap>,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    fn open(dir: &Path) -> Result<Self, HfError> {
        let mut checkpoint = Self {
            dir: dir.to_path_buf(),
            maps: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for file in files(dir)? {
            checkpoint.map(&dir.join(file))?;
        }
        Ok(checkpoint)
    }

    fn map(&mut self, path: &Path) -> Result<(), HfError> {
        let read = |source| HfError::Read {
            path: path.to_path_buf(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        // SAFETY: the map is only read, through bounds-checked slices of plain bytes. Should another process change the
        // file meanwhile, values would be wrong, as with any other way of reading it; shrinking it would raise SIGBUS.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let bad = |error: safetensors::SafeTensorError| HfError::Safetensors {
            path: path.to_path_buf(),
            reason: error.to_string(),
        };
        let (header_len, metadata) = SafeTensors::read_metadata(&map).map_err(bad)?;
        // The header is preceded by its length in 8 bytes.
        let first = 8 + header_len;
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let bytes = first + start..first + end;
            let stored = Stored {
                file: self.maps.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes,
            };
            self.tensors.insert(name, stored);
        }
        self.maps.push(map);
        Ok(())
    }

    /// Whether two tensors have the same bits.
    fn are_equal(&self, one: &str, other: &str) -> bool {
        let bits = |name: &str| {
            let stored = self.tensors.get(name)?;
            let bytes = &self.maps[stored.file][stored.bytes.clone()];
            Some((stored.dtype, &stored.shape, bytes))
        };
        bits(one) == bits(other)
    }

    fn check(&self, entries: &[Entry], tied: bool) -> Result<(), HfError> {
        let mut problems = Vec::new();
        let mut used = BTreeSet::new();
        for entry in entries {
            let name = entry.name.as_str();
            used.insert(name);
            let expected = entry.form.stored_shape(&entry.shape);
            match self.tensors.get(name) {
                None if name == OUTPUT => problems.push(format!(
                    "missing {name}, shape {expected:?}, and config.json does not say that {EMBEDDING} takes its place \
                     (tie_word_embeddings)"
                )),
                None => problems.push(format!("missing {name}, shape {expected:?}")),
                Some(stored) if stored.shape != expected => {
                    problems.push(format!(
                        "{name} has shape {:?}, and the model needs {expected:?}",
                        stored.shape
                    ));
                }
                Some(stored) if !matches!(stored.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) => {
                    problems.push(format!(
                        "{name} has elements of type {:?}: F32, F16 and BF16 are read",
                        stored.dtype
                    ));
                }
                Some(_) => {}
            }
        }
        if tied && self.tensors.contains_key(OUTPUT) {
            used.insert(OUTPUT);
            if !self.are_equal(OUTPUT, EMBEDDING) {
                problems.push(format!(
                    "{OUTPUT} is another one than {EMBEDDING}, and config.json says that they are one \
                     (tie_word_embeddings)"
                ));
            }
        }
        for (name, stored) in &self.tensors {
            if !used.contains(name.as_str()) && !name.ends_with(IGNORED) {
                problems.push(format!("unexpected {name}, shape {:?}", stored.shape));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(HfError::Tensors {
                path: self.dir.clone(),
                problems,
            })
        }
    }

    /// The elements of a tensor that [`Checkpoint::check`] has seen.
    fn read(&self, name: &str) -> Vec<f32> {
        let stored = &self.tensors[name];
        let bytes = &self.maps[stored.file][stored.bytes.clone()];
        let halves = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        match stored.dtype {
            Dtype::F16 => halves()
                .map(|pair| f16::from_le_bytes(pair).to_f32())
                .collect(),
            Dtype::BF16 => halves()
                .map(|pair| bf16::from_le_bytes(pair).to_f32())
                .collect(),
            _ => bytes
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect(),
        }
    }
}

/// The safetensors files of a folder.
fn files(dir: &Path) -> Result<BTreeSet<String>, HfError> {
    let single = "model.safetensors";
    let index = dir.join("model.safetensors.index.json");
    if index.exists() {
        let text = std::fs::read_to_string(&index).map_err(|source| HfError::Read {
            path: index.clone(),
            source,
        })?;
        let index: Index = serde_json::from_str(&text).map_err(|error| HfError::Json {
            path: index.clone(),
            reason: error.to_string(),
        })?;
        return Ok(index.weight_map.into_values().collect());
    }
    if dir.join(single).exists() {
        return Ok(BTreeSet::from([single.to_string()]));
    }
    Err(HfError::NoTensors {
        path: dir.to_path_buf(),
    })
}

struct Loader {
    checkpoint: Checkpoint,
    path: PathStack,
    head_dim: usize,
}

impl<B: Backend> ModuleMapper<B> for Loader {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (name, form) = stored_as(&self.path.path(), self.head_dim);
        let shape = param.lazy_shape().to_vec();
        let values = form.unpack(self.checkpoint.read(&name), &shape);
        let tensor = Tensor::from_data(TensorData::new(values, shape), &param.lazy_device());
        let id = param.id;
        param.transform_for_load(tensor, id)
    }
}
