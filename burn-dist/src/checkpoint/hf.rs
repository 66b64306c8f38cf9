//! Models in the form of Hugging Face: a folder with `*.safetensors` files, `config.json` and what belongs to them.
//!
//! What a model is called there, [`Names`] says, as data. Whatever is not a tensor is bytes: the configuration and the
//! tokenizer are read and written by who knows them.
//!
//! ```
//! use burn::backend::Flex;
//! use burn::nn::{Linear, LinearConfig};
//! use burn_dist::checkpoint::hf::{Export, Folder, Names, load, save};
//! use burn_dist::{DeviceMesh, Dist};
//!
//! type B = Dist<Flex>;
//! let names = Names::parse(r#""weight" = "proj.weight, transposed""#, &[])?;
//! let linear = || LinearConfig::new(4, 2).with_bias(false);
//! let directory = std::env::temp_dir().join(format!("burn-dist-hf-{}", std::process::id()));
//!
//! let mesh = DeviceMesh::parse("fsdp=2")?;
//! let model: Linear<B> = linear().init(&mesh.device());
//! save(&model, &names, &directory, &Export::default(), &mesh.device())?;
//! let other = DeviceMesh::parse("tp=2")?;
//! let model: Linear<B> = linear().init(&other.device());
//! let model = load(model, &Folder::open(&directory)?, &names, &other.device())?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use burn_core::module::Module;
use burn_dist_checkpoint::convert::convert_floats;
use burn_dist_checkpoint::{CheckpointError, KeyReport, Match};

pub use burn_dist_checkpoint::hf::{
    Folder, FolderProblem, FolderWriter, Form, Names, NamesError, NamesProblem,
    Tensor as Described, Wanted,
};

use super::StateError;
use super::parameters::{Parameter, parameters, values};
use super::read::{Reader, Source, Want};
use super::restore::restore;
use super::saved::LoadOptions;
use crate::mesh::DType;
use crate::ops::dtype::of_burn;
use crate::parallel::{MeshBackend, mesh_of};

/// Returns a module with the weights of a folder, each parameter laid out as the module says (`parallelize`), in the
/// module's own type. Parameters that have no value yet are not initialised first.
///
/// Each process reads what its ranks hold.
///
/// # Errors
/// [`StateError::Unnamed`] for parameters that `names` has no tensor for; [`CheckpointError::Keys`] with every missing,
/// unexpected or misshapen tensor; [`StateError`].
pub fn load<B: MeshBackend, M: Module<B>>(
    module: M,
    folder: &Folder,
    names: &Names,
    device: &B::Device,
) -> Result<M, StateError> {
    let mesh = mesh_of::<B>(device)?;
    let parameters = parameters::<B>(&module);
    let named = named(&parameters, names)?;
    let report = compare(folder, names, &parameters, &named);
    if !report.is_fine(Match::Exact) {
        return Err(CheckpointError::Keys(Box::new(report)).into());
    }
    let wants = parameters
        .iter()
        .zip(named)
        .map(|(parameter, (key, form))| {
            Some(Want {
                key,
                dtype: parameter.dtype,
                shape: parameter.shape.clone(),
                placement: parameter.placement(&mesh),
                form,
            })
        });
    let reader = Reader::<B> {
        source: Source::Folder(folder),
        device,
        mesh: &mesh,
        options: LoadOptions {
            convert: true,
            ..LoadOptions::default()
        },
    };
    restore(module, &parameters, wants.collect(), &reader)
}

/// Returns the differences between the parameters of a module and the tensors of a folder, without those that `names`
/// ignores. Types are none: they are converted.
///
/// # Errors
/// [`StateError::Unnamed`].
pub fn check<B: MeshBackend>(
    module: &impl Module<B>,
    folder: &Folder,
    names: &Names,
) -> Result<KeyReport, StateError> {
    let parameters = parameters::<B>(module);
    let named = named(&parameters, names)?;
    Ok(compare(folder, names, &parameters, &named))
}

/// Returns the tensors that hold parameters.
fn named(parameters: &[Parameter], names: &Names) -> Result<Vec<(String, Form)>, StateError> {
    let each = parameters.iter().map(|parameter| {
        let tensor = names.tensor(&parameter.path);
        tensor.ok_or_else(|| StateError::Unnamed {
            path: parameter.path.clone(),
        })
    });
    each.collect()
}

fn compare(
    folder: &Folder,
    names: &Names,
    parameters: &[Parameter],
    named: &[(String, Form)],
) -> KeyReport {
    let wanted = parameters.iter().zip(named);
    let wanted = wanted.map(|(parameter, (name, form))| Wanted {
        name,
        form: *form,
        dtype: None,
        shape: &parameter.shape,
    });
    let mut report = folder.compare(wanted);
    report.unexpected.retain(|name| !names.is_ignored(name));
    report
}

/// How a model is written to a folder.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// The types of tensors, by name; the others keep that of their parameter.
    pub dtypes: BTreeMap<String, DType>,
    /// How many bytes of tensors a file has at most; all are in one without a limit. Hugging Face takes 5 GB.
    pub shard_bytes: Option<u64>,
    /// Files beside the tensors: their names and contents.
    pub others: Vec<(String, Vec<u8>)>,
}

/// Writes a module to a folder, which is made if need be: in process 0, where one tensor at a time is put together. An
/// earlier model there is whole until the new one is.
///
/// # Communication
/// All processes call it; those of a tensor's ranks send their parts.
/// # Errors
/// [`StateError::Unnamed`]; [`StateError::Range`] if a value has no place in its type; [`StateError`].
pub fn save<B: MeshBackend>(
    module: &impl Module<B>,
    names: &Names,
    folder: &Path,
    export: &Export,
    device: &B::Device,
) -> Result<(), StateError> {
    let mut found = BTreeMap::new();
    for (path, value) in values::<B>(module) {
        let tensor = names.tensor(&path);
        let (name, form) = tensor.ok_or(StateError::Unnamed { path })?;
        let dtype = export.dtypes.get(&name).copied();
        let dtype = dtype.unwrap_or_else(|| value.dtype());
        found.insert(name, (form, dtype, value));
    }
    let tensors = found.iter().map(|(name, (form, dtype, value))| {
        Described::new(name, *dtype, form.stored_shape(&value.shape()))
    });
    let leads = B::world(device).is_none_or(|world| world.process() == 0);
    // The order in which all processes read: that of the writer.
    let mut tensors: Vec<Described> = tensors.collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
    let order: Vec<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let mut writer = match leads {
        true => FolderWriter::create(folder, tensors, export.shard_bytes).map(Some),
        false => Ok(None),
    };
    let mut error = None;
    for name in order {
        let Some((form, dtype, value)) = found.remove(&name) else {
            continue;
        };
        let shape = value.shape();
        // Whatever has failed, the others wait for the parts.
        let data = value.read().map_err(|error| StateError::Unsaved {
            name: name.clone(),
            reason: error.to_string(),
        });
        let Ok(Some(writer)) = &mut writer else {
            continue;
        };
        if error.is_some() {
            continue;
        }
        let written = data.and_then(|data| {
            let from = of_burn(data.dtype);
            let bytes = converted(&name, &data.bytes, from, dtype)?;
            Ok(writer.write_parameter(&name, form, &shape, &bytes)?)
        });
        error = written.err();
    }
    if let Some(error) = error {
        return Err(error);
    }
    let Some(mut writer) = writer? else {
        return Ok(());
    };
    for (name, bytes) in &export.others {
        writer.write_other(name, bytes)?;
    }
    Ok(writer.commit()?)
}

/// Returns elements in another type.
fn converted(name: &str, bytes: &[u8], from: DType, to: DType) -> Result<Vec<u8>, StateError> {
    if from == to {
        return Ok(bytes.to_vec());
    }
    let mut target = vec![0; bytes.len() / from.size().max(1) * to.size()];
    match convert_floats(from, to, bytes, &mut target) {
        true => Ok(target),
        false => Err(StateError::Range {
            name: name.to_string(),
            dtype: to,
        }),
    }
}
