//! Adapters from a folder, and to one: `adapter_model.safetensors` and `adapter_config.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};
use burn_core::tensor::Device;

use super::adapters::Adapters;
use super::error::AdapterError;
use super::layers::{Layer, Layers};
use super::settings;
use crate::checkpoint::NonFinite;
use crate::checkpoint::hf::{self, ADAPTERS, Factor, Folder};
use crate::trainer::args::ConvertArgs;
use crate::trainer::exit::End;
use crate::trainer::folder::{InFolders, load_reported};
use crate::trainer::{convert, job};

/// Reads which adapters a folder has for a model of these sizes: the layers are those of its tensors.
///
/// # Errors
/// [`AdapterError::Json`] and [`AdapterError::Unsupported`] of its configuration; [`AdapterError::OtherBase`] with
/// every tensor that does not fit; [`AdapterError::File`].
pub fn read<M: InFolders>(dir: &Path, config: &M::Config) -> Result<Adapters, AdapterError> {
    let mut adapters = settings::read(dir)?;
    let file = Folder::open_file(dir, ADAPTERS)?;
    let layers = Layers::of::<M>(config);
    let mut problems = Vec::new();
    // Of each layer that is named, which factors there are.
    let mut found: BTreeMap<&str, BTreeSet<Factor>> = BTreeMap::new();
    for (name, _, shape) in file.tensors() {
        let Some((factor, layer_name)) = Factor::of_tensor(name) else {
            problems.push(format!("unexpected {name}: it is no factor of a layer"));
            continue;
        };
        let Some(layer) = layers.get(layer_name) else {
            problems.push(format!(
                "unexpected {name}: the base has no linear layer {layer_name}"
            ));
            continue;
        };
        found.entry(layer_name).or_default().insert(factor);
        let wanted = shape_of(factor, layer, adapters.rank);
        if shape != wanted {
            problems.push(format!(
                "{name} has shape {shape:?}, and the base needs {wanted:?}"
            ));
        }
    }
    for (layer, factors) in &found {
        for factor in Factor::ALL.iter().filter(|it| !factors.contains(it)) {
            problems.push(format!("missing {}", factor.tensor(layer)));
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
    adapters.matrices = matrices.map(|layer| layer.matrix.clone()).collect();
    Ok(adapters)
}

/// Returns the shape of a factor, as a file has it.
fn shape_of(factor: Factor, layer: &Layer, rank: usize) -> [usize; 2] {
    match factor {
        Factor::A => [rank, layer.inputs],
        Factor::B => [layer.outputs, rank],
    }
}

/// Replaces the factors of a model, which [`read`] has found in the folder, by the folder's. Each process reads what
/// its ranks hold.
///
/// # Communication
/// All processes call it, and wait until all have read.
/// # Errors
/// [`AdapterError::File`] and [`AdapterError::State`].
pub fn load<M: InFolders>(
    model: M,
    config: &M::Config,
    dir: &Path,
    device: &Device,
) -> Result<(M, Option<NonFinite>), AdapterError> {
    let file = Folder::open_file(dir, ADAPTERS)?;
    let (model, loaded) = hf::load_adapters(model, &file, &M::names(config), device)?;
    Ok((model, loaded.non_finite))
}

/// Returns what reads the weights of a folder into a model of these sizes, and the adapters of another one, if there is
/// one, over them.
pub fn weights<M: InFolders>(
    dir: &Path,
    config: &M::Config,
    adapters: Option<&Path>,
) -> job::Folder<M> {
    let config = config.clone();
    let adapters = adapters.map(Path::to_path_buf);
    job::Folder {
        path: dir.to_path_buf(),
        load: Box::new(move |model, path, device| {
            let (model, found) = load_reported(model, &config, path, device)?;
            let Some(adapters) = &adapters else {
                return Ok((model, found));
            };
            let (model, more) = load(model, &config, adapters, device)?;
            Ok((model, found.or(more)))
        }),
    }
}

/// Writes the factors of a model, which has these adapters, into a folder, for PEFT to load onto the model of the
/// folder `base`.
///
/// # Communication
/// All processes call it, and all learn how it ended; the first one writes, and returns which values are not finite.
/// # Errors
/// [`AdapterError::State`].
pub fn save<M: InFolders>(
    model: &M,
    config: &M::Config,
    (adapters, base): (&Adapters, &str),
    dir: &Path,
    device: &Device,
) -> Result<Option<NonFinite>, AdapterError> {
    let layers = Layers::of::<M>(config);
    let chosen = layers.iter();
    let chosen = chosen.filter(|(_, layer)| adapters.matrices.contains(&layer.matrix));
    let chosen: BTreeSet<&str> = chosen.map(|(name, _)| name).collect();
    let written = settings::written(adapters, &layers.shortest(&chosen), base);
    let others = vec![(settings::FILE.to_string(), written)];
    let names = M::names(config);
    Ok(hf::save_adapters(model, &names, dir, others, device)?)
}

/// Writes a folder with the adapters of another one merged into it, as [`convert::merge`] does.
///
/// # Errors
/// What cannot be merged, for people.
pub fn merge<M: InFolders>(args: &ConvertArgs, dir: &Path) -> anyhow::Result<End> {
    let from = &args.from;
    if !from.join("config.json").is_file() {
        bail!(
            "--merge takes the folder of a model as the base, and {} is none (without a config.json): convert the \
             checkpoint first, without --merge",
            from.display()
        );
    }
    let adapters = read::<M>(dir, &M::read_config(from)?);
    let adapters = adapters.with_context(|| cannot_take(dir))?;
    let file = Folder::open_file(dir, ADAPTERS)?;
    convert::merge(args, &file, adapters.scale())
}

/// Returns the beginning of an error about a folder whose adapters do not fit.
pub(super) fn cannot_take(dir: &Path) -> String {
    format!("cannot take the adapters of {}", dir.display())
}
