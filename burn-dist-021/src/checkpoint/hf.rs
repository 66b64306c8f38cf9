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

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use burn_core::module::Module;
use burn_dist_checkpoint::convert::convert_floats;
use burn_dist_checkpoint::{CheckpointError, KeyReport, Match, Mismatch, NonFinite};
use burn_dist_door::DataParts;
use burn_dist_front::checkpoint::float8;

pub use burn_dist_checkpoint::hf::{
    FLOAT8_BLOCK, Float8, Folder, FolderProblem, FolderWriter, Form, Names, NamesError,
    NamesProblem, NumBytes, Tensor as Described, Wanted,
};
pub use burn_dist_checkpoint::{Loaded, Region, Request};

use super::StateError;
use super::checkpointer::{Processes, in_all, mesh_with_values};
use super::parameters::{Parameter, Value, parameters, values};
use super::read::{ByteCount, Reader, Source};
use super::restore::restore;
use super::saved::LoadOptions;
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
    let processes = Processes::of::<B>(device)?;
    let reader = Reader::<B> {
        source: Source::Folder(folder),
        device,
        mesh: &mesh,
        options: LoadOptions {
            convert: true,
            ..LoadOptions::default()
        },
        count: ByteCount::default(),
        non_finite: Mutex::default(),
    };
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
fn read<B: MeshBackend, M: Module<B>>(
    module: M,
    folder: &Folder,
    names: &Names,
    matching: Match,
    reader: &Reader<'_, B>,
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
                .then(|| parameter.want(key, form, reader.mesh))
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
    let is_float8 = |parameter: &Parameter, name: &str, form: Form| {
        let is_matrix = Float8::of(form, &parameter.shape).is_some();
        folder.is_float8(name) && parameter.dtype.is_float() && is_matrix
    };
    let wanted = parameters.iter().zip(named);
    let wanted = wanted.map(|(parameter, (name, form))| {
        let found = folder.tensor(name).and_then(|(dtype, _)| dtype);
        let is_kind = found.is_some_and(|found| are_one_kind(found, parameter.dtype))
            || is_float8(parameter, name, *form);
        Wanted {
            name,
            form: *form,
            dtype: (!is_kind).then_some(parameter.dtype),
            shape: &parameter.shape,
        }
    });
    let mut report = folder.compare(wanted);
    report.unexpected.retain(|name| !names.is_ignored(name));
    for (parameter, (name, form)) in parameters.iter().zip(named) {
        if !is_float8(parameter, name, *form) {
            continue;
        }
        let factors = Float8::factors_name(name);
        report.unexpected.retain(|other| *other != factors);
        let wanted = Float8::of(*form, &parameter.shape).map(|float8| float8.factors_shape());
        let wanted_shape = wanted.unwrap_or_default().to_vec();
        match folder.tensor(&factors) {
            None => report.missing.push(factors),
            Some((Some(DType::F32), shape)) if shape == wanted_shape => {}
            Some((dtype, shape)) => report.mismatched.push(Mismatch {
                key: factors,
                wanted_shape,
                found_shape: shape.to_vec(),
                wanted_dtype: DType::F32,
                found_dtype: dtype.map_or("another type", DType::name).into(),
            }),
        }
    }
    report
}

/// Returns whether elements of one type are converted into the other. The integers of a quantised model are no floats.
fn are_one_kind(one: DType, other: DType) -> bool {
    let kind = |dtype: DType| (dtype.is_float(), dtype.is_bool());
    let is_quantized = |dtype| matches!(dtype, DType::Quantized(_));
    one == other || kind(one) == kind(other) && !is_quantized(one) && !is_quantized(other)
}

/// How a model is written to a folder.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// The types of tensors, by name; the others keep that of their parameter.
    pub dtypes: BTreeMap<String, DType>,
    /// Names of tensors that are written in 8 bits, each with the factors of its blocks ([`Float8`]): `F8_E4M3` of the
    /// values in the type of `dtypes`. Hugging Face's library wants `quantization_config` in `config.json` for it.
    pub float8: BTreeSet<String>,
    /// How many bytes of tensors a file has at most; all are in one without a limit. Hugging Face takes 5 GB.
    pub shard_bytes: Option<u64>,
    /// Files beside the tensors: their names and contents.
    pub others: Vec<(String, Vec<u8>)>,
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
        let from = value.dtype();
        let dtype = export.dtypes.get(&name).copied().unwrap_or(from);
        if from != dtype && !(from.is_float() && dtype.is_float()) {
            return Err(StateError::Unsaved {
                name,
                reason: format!("its elements are {from}, and {dtype} is asked for"),
            });
        }
        parts.insert(name, (form, dtype, value));
    }
    let mut described: Vec<Described> = Vec::with_capacity(parts.len());
    let mut factors: BTreeMap<String, String> = BTreeMap::new();
    for (name, (form, dtype, value)) in &parts {
        let stored = form.stored_shape(&value.shape());
        if !export.float8.contains(name) {
            described.push(Described::new(name, *dtype, stored));
            continue;
        }
        let float8 = Float8::of(*form, &value.shape()).filter(|_| dtype.is_float());
        let float8 = float8.ok_or_else(|| StateError::Unsaved {
            name: name.clone(),
            reason: "only matrices of floats are written in 8 bits".into(),
        })?;
        let of = Float8::factors_name(name);
        described.push(Described::float8(name, stored));
        described.push(Described::new(
            &of,
            DType::F32,
            float8.factors_shape().into(),
        ));
        factors.insert(of, name.clone());
    }
    if let Some(name) = export.float8.iter().find(|name| !parts.contains_key(*name)) {
        return Err(StateError::Unsaved {
            name: name.clone(),
            reason: "it is to be in 8 bits, and no parameter is held by it".into(),
        });
    }
    // The order of the writer, in which all processes read.
    described.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
    let order: Vec<String> = described.iter().map(|it| it.name.clone()).collect();
    let processes = Processes::of::<B>(device)?;
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
                write(writer.as_mut(), &name, part, Some(Half::Factors))
            })?;
        }
        let half = export.float8.contains(&name).then_some(Half::Bits);
        if let Some(part) = parts.remove(&name) {
            let found = in_all(processes, "write", || {
                write(writer.as_mut(), &name, part, half)
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

/// The part of a parameter in 8 bits that a tensor has.
#[derive(Clone, Copy)]
enum Half {
    Bits,
    Factors,
}

/// Reads a parameter, and writes it, or one half of it in 8 bits, where there is a writer; returns there which values
/// of it are not finite.
fn write<B: MeshBackend>(
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
    let mut found = None;
    if let Some(writer) = writer {
        let bytes = converted(name, data.bytes(), of_burn(data.dtype()), dtype)?;
        found = NonFinite::among(name, dtype, &bytes);
        let Some((half, float8)) = half.zip(Float8::of(form, &shape)) else {
            writer.write_parameter(name, form, &shape, &bytes)?;
            return Ok(found);
        };
        let values = converted(name, &bytes, dtype, DType::F32)?;
        let (values, _) = values.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|it| f32::from_le_bytes(*it)).collect();
        let quantized = float8::quantized(&float8, &values);
        let (bits, factors) = quantized.ok_or_else(|| StateError::Unsaved {
            name: name.to_string(),
            reason: "it has values that are not finite, and 8 bits have no scale for them".into(),
        })?;
        match half {
            Half::Bits => writer.write_parameter(name, form, &shape, &bits)?,
            Half::Factors => {
                let bytes: Vec<u8> = factors.into_iter().flat_map(f32::to_le_bytes).collect();
                writer.write(name, &bytes)?;
            }
        }
    }
    Ok(found)
}

/// Returns floats in another type; others have the one that is asked for.
fn converted<'a>(
    name: &str,
    bytes: &'a [u8],
    from: DType,
    to: DType,
) -> Result<Cow<'a, [u8]>, StateError> {
    if from == to {
        return Ok(bytes.into());
    }
    let mut target = vec![0; bytes.len() / from.size().max(1) * to.size()];
    match convert_floats(from, to, bytes, &mut target) {
        true => Ok(target.into()),
        false => Err(StateError::Range {
            name: name.to_string(),
            dtype: to,
        }),
    }
}
