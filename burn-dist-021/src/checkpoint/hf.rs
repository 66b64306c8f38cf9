//! Models in the form of Hugging Face: a folder with `*.safetensors` files, `config.json` and what belongs to them.
//!
//! [`Names`] maps the paths of a model to the names in such files, as data. Whatever is not a tensor is bytes: programs
//! that know the configuration and the tokenizer read and write them.
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
use burn_dist_checkpoint::{CheckpointError, KeyReport, Match, NonFinite};

pub use super::folder::Export;
pub use burn_dist_checkpoint::hf::{
    FLOAT8_BLOCK, Float8, Folder, FolderProblem, FolderWriter, Form, Names, NamesError,
    NamesProblem, NumBytes, Tensor as Described, Wanted,
};
pub use burn_dist_checkpoint::{Loaded, Region, Request};

use super::StateError;
use super::checkpointer::{mesh_with_values, processes_of};
use super::folder::{Elements, Half, Layout, compare, layout, named, write, written_as};
use super::opened::LoadOptions;
use super::parameters::{Value, parameters, values};
use super::processes::{Processes, in_all};
use super::read::{Reader, Source};
use super::restore::restore;
use crate::mesh::DType;
use crate::ops::dtype::of_burn;
use crate::parallel::MeshBackend;

/// Returns a module with the weights of a folder, each parameter laid out as the module says (`parallelize`), in the
/// module's own type. Parameters that have no value yet are not initialised first.
///
/// Each process reads what its ranks hold. Matrices in 8 bits ([`Float8`]) are multiplied with the factors of their
/// blocks.
///
/// # Communication
/// All processes call it, and wait until all have read.
/// # Errors
/// [`StateError::Unnamed`] for parameters that `names` has no tensor for; [`CheckpointError::Keys`] with every missing,
/// unexpected or misshapen tensor, and those of integers for floats; [`StateError::Range`] if a value has no place in
/// the module's type; [`StateError`].
pub fn load<B: MeshBackend, M: Module<B>>(
    module: M,
    folder: &Folder,
    names: &Names,
    device: &B::Device,
) -> Result<M, StateError> {
    load_reported(module, folder, names, Match::Exact, device).map(|(module, _)| module)
}

/// Loads as [`load`] does; also returns the differences that `matching` allows, and what this process has read.
///
/// # Errors
/// As [`load`].
pub fn load_reported<B: MeshBackend, M: Module<B>>(
    module: M,
    folder: &Folder,
    names: &Names,
    matching: Match,
    device: &B::Device,
) -> Result<(M, Loaded), StateError> {
    let mesh = mesh_with_values::<B>(device)?;
    let processes = processes_of::<B>(device)?;
    let options = LoadOptions {
        convert: true,
        ..LoadOptions::default()
    };
    let give = |parts| B::give(parts, device);
    let ranks = B::local_ranks(device);
    let reader = Reader::new(Source::Folder(folder), &mesh, ranks, &give, options);
    let (module, report) = in_all(processes.as_ref(), "read", || {
        read::<B, M>(module, folder, names, matching, &reader)
    })?;
    let (bytes_needed, bytes_read) = reader.count.get();
    let loaded = Loaded {
        report,
        bytes_needed,
        bytes_read,
        non_finite: reader.non_finite(),
    };
    Ok((module, loaded))
}

/// Reads what the ranks of this process hold.
fn read<B: MeshBackend, M: Module<B>>(
    module: M,
    folder: &Folder,
    names: &Names,
    matching: Match,
    reader: &Reader<'_>,
) -> Result<(M, KeyReport), StateError> {
    let parameters = parameters::<B>(&module);
    let named = named(&parameters, names)?;
    let report = compare(folder, names, &parameters, &named);
    if !report.is_fine(matching) {
        return Err(CheckpointError::Keys(Box::new(report)).into());
    }
    let wants = parameters
        .iter()
        .zip(named)
        .map(|(parameter, (key, form))| {
            report
                .fits(&key)
                .then(|| parameter.want_of_folder(key, form, reader.mesh))
        });
    let wants = wants.collect();
    let module = restore(module, &parameters, wants, reader)?;
    Ok((module, report))
}

/// Returns the differences between the parameters of a module and the tensors of a folder, without those that `names`
/// ignores. Another type is one only if it is of another kind: floats are converted into each other.
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

/// Returns the tensors that a folder with this module has, in the order of its visit and in its own types.
///
/// # Errors
/// [`StateError::Unnamed`].
pub fn tensors<B: MeshBackend>(
    module: &impl Module<B>,
    names: &Names,
) -> Result<Vec<Described>, StateError> {
    let parameters = parameters::<B>(module);
    let named = named(&parameters, names)?.into_iter().zip(&parameters);
    let described = named.map(|((name, form), parameter)| {
        Described::new(name, parameter.dtype, form.stored_shape(&parameter.shape))
    });
    Ok(described.collect())
}

/// Writes a module to a folder, which is made if need be: in process 0, where one tensor at a time is put together. An
/// earlier model there is whole until the new one is.
///
/// # Communication
/// All processes call it; those of a tensor's ranks send their parts (of one in 8 bits, twice), and all learn how it
/// ended. Process 0 returns which values that it has written are not finite, if any are.
/// # Errors
/// [`StateError::Unnamed`]; [`StateError::Range`] if a value has no place in its type; [`StateError::Unsaved`] for what
/// cannot be in 8 bits; [`StateError`].
pub fn save<B: MeshBackend>(
    module: &impl Module<B>,
    names: &Names,
    folder: &Path,
    export: &Export,
    device: &B::Device,
) -> Result<Option<NonFinite>, StateError> {
    mesh_with_values::<B>(device)?;
    let mut parts = BTreeMap::new();
    let values = values::<B>(module).map_err(|unsaved| StateError::Unsaved {
        name: unsaved.path,
        reason: unsaved.reason,
    })?;
    for (path, value) in values {
        let tensor = names.tensor(&path);
        let (name, form) = tensor.ok_or(StateError::Unnamed { path })?;
        let dtype = written_as(&name, value.dtype(), export)?;
        parts.insert(name, (form, dtype, value));
    }
    let each = parts.iter();
    let each = each.map(|(name, (form, dtype, value))| (name, *form, *dtype, value.shape()));
    let Layout { described, factors } = layout(each, export)?;
    let order: Vec<String> = described.iter().map(|it| it.name.clone()).collect();
    let processes = processes_of::<B>(device)?;
    // The disk of process 0 takes its time. The others wait for it here, and not in a collective.
    let processes = processes.as_ref();
    let (mut writer, mut non_finite) = (None, None);
    in_all(processes, "write", || {
        if processes.is_none_or(Processes::leads) {
            writer = Some(FolderWriter::create(folder, described, export.shard_bytes)?);
        }
        Ok(())
    })?;
    for name in order {
        // Factors come first, for their elements are larger: what they are of is read twice.
        if let Some(of) = factors.get(&name)
            && let Some((form, dtype, value)) = parts.get(of)
        {
            let part = (*form, *dtype, value.clone());
            in_all(processes, "write", || {
                read_and_write(writer.as_mut(), &name, part, Some(Half::Factors))
            })?;
        }
        let half = export.float8.contains(&name).then_some(Half::Bits);
        if let Some(part) = parts.remove(&name) {
            let found = in_all(processes, "write", || {
                read_and_write(writer.as_mut(), &name, part, half)
            })?;
            non_finite = NonFinite::sum([non_finite, found]);
        }
    }
    in_all(processes, "write", || {
        let Some(mut writer) = writer else {
            return Ok(());
        };
        for (name, bytes) in &export.others {
            writer.write_other(name, bytes)?;
        }
        Ok(writer.commit()?)
    })?;
    Ok(non_finite)
}

/// Reads a parameter, and writes it, or one half of it in 8 bits, where there is a writer; returns there which values
/// of it are not finite.
fn read_and_write<B: MeshBackend>(
    writer: Option<&mut FolderWriter>,
    name: &str,
    (form, dtype, value): (Form, DType, Value<B>),
    half: Option<Half>,
) -> Result<Option<NonFinite>, StateError> {
    let shape = value.shape();
    let data = value.read().map_err(|error| StateError::Unsaved {
        name: name.to_string(),
        reason: error.to_string(),
    })?;
    let Some(writer) = writer else {
        return Ok(None);
    };
    let elements = Elements {
        shape: &shape,
        bytes: data.as_bytes(),
        dtype: of_burn(data.dtype),
    };
    write(writer, name, form, dtype, &elements, half)
}
