//! Adapters from a folder, and to one: `adapter_model.safetensors` and `adapter_config.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::tensor::Device;
use burn_dist::Float;
use burn_dist::checkpoint::NonFinite;
use burn_dist::checkpoint::hf::{self, ADAPTERS, Folder};
use burn_dist::trainer::folder::InFolders;

use super::config::{self, Settings};
use super::error::AdapterError;
use super::layers::{Layer, Layers};
use crate::model::{Adapters, Llama, LlamaConfig};

/// The start of the names of factors.
const PREFIX: &str = "base_model.model.";
/// The ends of the names of the two factors of a layer.
const ENDS: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// Reads which adapters a folder has for a model of these sizes: the layers are those of its tensors.
///
/// # Errors
/// [`AdapterError::Json`] and [`AdapterError::Unsupported`] of its configuration; [`AdapterError::OtherBase`] with
/// every tensor that does not fit; [`AdapterError::File`].
pub fn read(dir: &Path, config: &LlamaConfig) -> Result<Adapters, AdapterError> {
    let settings = config::read(dir)?;
    let file = Folder::open_file(dir, ADAPTERS)?;
    let layers = Layers::of(config);
    let mut problems = Vec::new();
    // Of each layer that is named, whether there are both.
    let mut found: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    for (name, _, shape) in file.tensors() {
        let factor = name.strip_prefix(PREFIX).and_then(|name| {
            let ends = ENDS.iter().enumerate();
            let mut ends = ends.filter_map(|(which, end)| Some((name.strip_suffix(end)?, which)));
            ends.next()
        });
        let Some((layer_name, which)) = factor else {
            problems.push(format!("unexpected {name}: it is no factor of a layer"));
            continue;
        };
        let Some(layer) = layers.get(layer_name) else {
            problems.push(format!(
                "unexpected {name}: the base has no linear layer {layer_name}"
            ));
            continue;
        };
        found.entry(layer_name).or_default()[which] = true;
        let wanted = shapes(layer, settings.rank)[which];
        if shape != wanted {
            problems.push(format!(
                "{name} has shape {shape:?}, and the base needs {wanted:?}"
            ));
        }
    }
    for (layer, both) in &found {
        for (which, _) in both.iter().enumerate().filter(|(_, is_there)| !**is_there) {
            problems.push(format!("missing {PREFIX}{layer}{}", ENDS[which]));
        }
    }
    if found.is_empty() && problems.is_empty() {
        problems.push("it has no tensors".to_string());
    }
    if !problems.is_empty() {
        let path = dir.to_path_buf();
        return Err(AdapterError::OtherBase { path, problems });
    }
    let matrices = found.keys().filter_map(|name| layers.get(name));
    Ok(Adapters {
        rank: settings.rank,
        alpha: settings.alpha,
        is_rank_stabilized: settings.is_rank_stabilized,
        dropout: settings.dropout,
        base: Float::F32,
        matrices: matrices.map(|layer| layer.matrix.clone()).collect(),
    })
}

/// Returns the shapes of the two factors of a layer, as a file has them.
fn shapes(layer: &Layer, rank: usize) -> [[usize; 2]; 2] {
    [[rank, layer.inputs], [layer.outputs, rank]]
}

/// Replaces the factors of a model, which [`read`] has found in the folder, by the folder's. Each process reads what
/// its ranks hold.
///
/// # Communication
/// All processes call it, and wait until all have read.
/// # Errors
/// [`AdapterError::File`] and [`AdapterError::State`].
pub fn load(
    model: Llama,
    config: &LlamaConfig,
    dir: &Path,
    device: &Device,
) -> Result<(Llama, Option<NonFinite>), AdapterError> {
    let file = Folder::open_file(dir, ADAPTERS)?;
    let (model, loaded) = hf::load_adapters(model, &file, &Llama::names(config), device)?;
    Ok((model, loaded.non_finite))
}

/// Writes the factors of a model, which has these adapters, into a folder, for PEFT to load onto the model of the
/// folder `base`.
///
/// # Communication
/// All processes call it, and all learn how it ended; the first one writes, and returns which values are not finite.
/// # Errors
/// [`AdapterError::State`].
pub fn save(
    model: &Llama,
    config: &LlamaConfig,
    (adapters, base): (&Adapters, &str),
    dir: &Path,
    device: &Device,
) -> Result<Option<NonFinite>, AdapterError> {
    let layers = Layers::of(config);
    let chosen = layers.iter();
    let chosen = chosen.filter(|(_, layer)| adapters.matrices.contains(&layer.matrix));
    let chosen: BTreeSet<&str> = chosen.map(|(name, _)| name).collect();
    let settings = Settings {
        rank: adapters.rank,
        alpha: adapters.alpha,
        is_rank_stabilized: adapters.is_rank_stabilized,
        dropout: adapters.dropout,
    };
    let written = config::written(&settings, &layers.shortest(&chosen), base);
    let others = vec![(config::FILE.to_string(), written)];
    let names = Llama::names(config);
    Ok(hf::save_adapters(model, &names, dir, others, device)?)
}
