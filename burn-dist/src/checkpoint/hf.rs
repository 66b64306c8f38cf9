//! Models in the form of Hugging Face: a folder with `*.safetensors` files, `config.json` and what belongs to them.
//!
//! [`Names`] maps the paths of a model to the names in such files, as data. Whatever is not a tensor is bytes: programs
//! that know the configuration and the tokenizer read and write them.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn_dist::checkpoint::hf::{Export, Folder, Names, load, save};
//! use burn_dist::DeviceMesh;
//!
//! let names = Names::parse(r#""weight" = "proj.weight, transposed""#, &[])?;
//! let linear = || LinearConfig::new(4, 2).with_bias(false);
//! let directory = std::env::temp_dir().join(format!("burn-dist-hf-{}", std::process::id()));
//!
//! let mesh = DeviceMesh::parse("fsdp=2")?;
//! let model: Linear = linear().init(&mesh.device());
//! save(&model, &names, &directory, &Export::default(), &mesh.device())?;
//! let other = DeviceMesh::parse("tp=2")?;
//! let model: Linear = linear().init(&other.device());
//! let model = load(model, &Folder::open(&directory)?, &names, &other.device())?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use burn_core::module::Module;
use burn_core::tensor::Device;
use burn_dist_checkpoint::{CheckpointError, KeyReport, Match, NonFinite};

pub use super::folder::Export;
pub use burn_dist_checkpoint::hf::{
    FLOAT8_BLOCK, Factor, Float8, Folder, FolderProblem, FolderWriter, Form, Names, NamesError,
    NamesProblem, NumBytes, Tensor as Described, Wanted,
};
pub use burn_dist_checkpoint::{Loaded, Region, Request};

use super::StateError;
use super::checkpointer::{mesh_with_values, processes_of};
use super::folder::{Elements, Half, Layout, compare, layout, named, write, written_as};
use super::opened::LoadOptions;
use super::parameters::{Parameter, Value, listed, values};
use super::processes::{Processes, in_all};
use super::read::{Reader, Source};
use super::restore::restore;
use crate::Dist;
use crate::mesh::DType;
use crate::ops::dtype::of_burn;
use crate::record::local_ranks;
use crate::record::parts::Parts;

/// The file of adapters, as PEFT names it.
pub const ADAPTERS: &str = "adapter_model.safetensors";

/// The parameters of a module that a folder holds.
#[derive(Clone, Copy)]
enum Part {
    /// Its own, and of what is attached to them what has a name.
    Model,
    /// Parameters that are attached to its own: factors of LoRA.
    Attached,
}

/// All parameters of a module, and which of them are of a part.
struct Split {
    all: Vec<Parameter>,
    is_own: Vec<bool>,
}

impl Split {
    fn of(module: &impl Module, names: &Names, part: Part) -> Self {
        let (all, are_attached) = listed(module);
        let is_own = all.iter().zip(are_attached);
        let is_own = is_own.map(|(parameter, is_attached)| match part {
            Part::Model => !is_attached || names.tensor(&parameter.path).is_some(),
            Part::Attached => is_attached,
        });
        let is_own = is_own.collect();
        Self { all, is_own }
    }

    /// Returns those of the part.
    fn own(&self) -> Vec<Parameter> {
        let all = self.all.iter().zip(&self.is_own);
        let own = all.filter(|(_, is_own)| **is_own);
        own.map(|(parameter, _)| parameter.clone()).collect()
    }
}

/// Returns a module with the weights of a folder, each parameter laid out as the module says (`parallelize`), in the
/// module's own type. Parameters that have no value yet are not initialised first.
///
/// Parameters that are attached to others (factors of LoRA) stay as they are: see [`load_adapters`].
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
pub fn load<M: Module>(
    module: M,
    folder: &Folder,
    names: &Names,
    device: &Device,
) -> Result<M, StateError> {
    load_reported(module, folder, names, Match::Exact, device).map(|(module, _)| module)
}

/// Loads as [`load`] does; also returns the differences that `matching` allows, and what this process has read.
///
/// # Errors
/// As [`load`].
pub fn load_reported<M: Module>(
    module: M,
    folder: &Folder,
    names: &Names,
    matching: Match,
    device: &Device,
) -> Result<(M, Loaded), StateError> {
    load_part(module, folder, (names, Part::Model), matching, device)
}

/// Returns a module whose LoRA factors, or what else is attached to its parameters, are those of a file
/// ([`Folder::open_file`]); the parameters themselves stay as they are. `names` are those of the model.
///
/// # Communication
/// As [`load`].
/// # Errors
/// As [`load`].
pub fn load_adapters<M: Module>(
    module: M,
    file: &Folder,
    names: &Names,
    device: &Device,
) -> Result<(M, Loaded), StateError> {
    let names = (&names.lora(), Part::Attached);
    load_part(module, file, names, Match::Exact, device)
}

fn load_part<M: Module>(
    module: M,
    folder: &Folder,
    names: (&Names, Part),
    matching: Match,
    device: &Device,
) -> Result<(M, Loaded), StateError> {
    let (on, mesh) = mesh_with_values(device)?;
    let processes = processes_of(&on)?;
    let options = LoadOptions {
        convert: true,
        ..LoadOptions::default()
    };
    let give = |parts| Dist::give(parts, &on);
    let ranks = local_ranks(&on);
    let reader = Reader::new(Source::Folder(folder), &mesh, ranks, &give, options);
    let (module, report) = in_all(processes.as_ref(), "read", || {
        read(module, folder, names, matching, &reader)
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
fn read<M: Module>(
    module: M,
    folder: &Folder,
    (names, part): (&Names, Part),
    matching: Match,
    reader: &Reader<'_>,
) -> Result<(M, KeyReport), StateError> {
    let split = Split::of(&module, names, part);
    let own = split.own();
    let named = named(&own, names)?;
    let report = compare(folder, names, &own, &named);
    if !report.is_fine(matching) {
        return Err(CheckpointError::Keys(Box::new(report)).into());
    }
    let mut named = named.into_iter();
    let wants = split.all.iter().zip(&split.is_own);
    let wants = wants.map(|(parameter, is_own)| {
        let (key, form) = is_own.then(|| named.next())??;
        let mut members = form.members(&key, &parameter.shape).into_iter();
        let fits = members.all(|(name, ..)| report.fits(&name));
        fits.then(|| parameter.want_of_folder(key, form, reader.mesh))
    });
    let wants = wants.collect();
    let module = restore(module, &split.all, wants, reader)?;
    Ok((module, report))
}

/// Returns the differences between the parameters of a module and the tensors of a folder, without those that `names`
/// ignores. Another type is one only if it is of another kind: floats are converted into each other.
///
/// # Errors
/// [`StateError::Unnamed`].
pub fn check(
    module: &impl Module,
    folder: &Folder,
    names: &Names,
) -> Result<KeyReport, StateError> {
    let parameters = Split::of(module, names, Part::Model).own();
    let named = named(&parameters, names)?;
    Ok(compare(folder, names, &parameters, &named))
}

/// Returns the tensors that a folder with this module has, in the order of its visit and in its own types.
///
/// # Errors
/// [`StateError::Unnamed`].
pub fn tensors(module: &impl Module, names: &Names) -> Result<Vec<Described>, StateError> {
    let parameters = Split::of(module, names, Part::Model).own();
    let named = named(&parameters, names)?.into_iter().zip(&parameters);
    let described = named.flat_map(|((name, form), parameter)| {
        let members = form.members(&name, &parameter.shape).into_iter();
        members.map(|(name, form, shape)| {
            Described::new(name, parameter.dtype, form.stored_shape(&shape))
        })
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
pub fn save(
    module: &impl Module,
    names: &Names,
    folder: &Path,
    export: &Export,
    device: &Device,
) -> Result<Option<NonFinite>, StateError> {
    save_values(values(module), names, (folder, None), export, device)
}

/// Writes LoRA's factors, or what else is attached to the parameters of a module, to a folder, as [`save`] writes a
/// model: to the file [`ADAPTERS`], and `others` beside it. `names` are those of the model.
///
/// # Communication
/// As [`save`].
/// # Errors
/// As [`save`].
pub fn save_adapters(
    module: &impl Module,
    names: &Names,
    folder: &Path,
    others: Vec<(String, Vec<u8>)>,
    device: &Device,
) -> Result<Option<NonFinite>, StateError> {
    let export = Export {
        others,
        ..Export::default()
    };
    let mut values = values(module);
    values.retain(|(_, value)| value.is_attached);
    save_values(
        values,
        &names.lora(),
        (folder, Some(ADAPTERS)),
        &export,
        device,
    )
}

/// Writes values as a model, or to the one file that is named.
fn save_values(
    values: Vec<(String, Value)>,
    names: &Names,
    (folder, file): (&Path, Option<&str>),
    export: &Export,
    device: &Device,
) -> Result<Option<NonFinite>, StateError> {
    let (on, _) = mesh_with_values(device)?;
    let mut parts = BTreeMap::new();
    // Tensors that are part of a parameter, by the name of all of these.
    let mut stacks: BTreeMap<String, String> = BTreeMap::new();
    for (path, value) in values {
        let tensor = names.tensor(&path);
        let (name, form) = tensor.ok_or(StateError::Unnamed { path })?;
        // Of several tensors, all are written alike.
        let all = form.members(&name, &value.shape());
        let first = all.first().map_or(&name, |(first, ..)| first);
        let dtype = written_as(first, value.dtype(), export)?;
        for (member, ..) in &all {
            if written_as(member, value.dtype(), export)? != dtype {
                return Err(StateError::Unsaved {
                    name: member.clone(),
                    reason: format!(
                        "it is of another type than {first}, and one parameter holds both"
                    ),
                });
            }
            if form == Form::Stacked {
                stacks.insert(member.clone(), name.clone());
            }
        }
        parts.insert(name, (form, dtype, value));
    }
    let each = parts.iter();
    let each = each.map(|(name, (form, dtype, value))| (name, *form, *dtype, value.shape()));
    let Layout { described, factors } = layout(each, export)?;
    let order: Vec<String> = described.iter().map(|it| it.name.clone()).collect();
    let processes = processes_of(&on)?;
    // The disk of process 0 takes its time. The others wait for it here, and not in a collective.
    let processes = processes.as_ref();
    let (mut writer, mut non_finite) = (None, None);
    in_all(processes, "write", || {
        if processes.is_none_or(Processes::leads) {
            writer = Some(match file {
                Some(name) => FolderWriter::create_file(folder, name, described)?,
                None => FolderWriter::create(folder, described, export.shard_bytes)?,
            });
        }
        Ok(())
    })?;
    for name in order {
        // Factors come first, for their elements are larger: what they are of is read twice.
        if let Some(of) = factors.get(&name)
            && let Some((form, dtype, value)) = parts.get(of)
        {
            let part = (*form, *dtype, value);
            in_all(processes, "write", || {
                read_and_write(writer.as_mut(), &name, part, Some(Half::Factors))
            })?;
        }
        let half = export.float8.contains(&name).then_some(Half::Bits);
        // The others of a stack follow its first.
        let name = stacks.get(&name).unwrap_or(&name);
        if let Some((form, dtype, value)) = parts.remove(name) {
            let part = (form, dtype, &value);
            let found = in_all(processes, "write", || {
                read_and_write(writer.as_mut(), name, part, half)
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
fn read_and_write(
    writer: Option<&mut FolderWriter>,
    name: &str,
    (form, dtype, value): (Form, DType, &Value),
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
    let members = form.members(name, &shape);
    let each = data.as_bytes().len() / members.len().max(1);
    let mut found = Vec::with_capacity(members.len());
    for (number, (name, form, shape)) in members.iter().enumerate() {
        let elements = Elements {
            shape,
            bytes: &data.as_bytes()[number * each..][..each],
            dtype: of_burn(data.dtype()),
        };
        found.push(write(writer, name, *form, dtype, &elements, half)?);
    }
    Ok(NonFinite::sum(found))
}
