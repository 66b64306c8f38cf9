//! Folders in the form of Hugging Face, as far as no tensor is named.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use burn_dist_checkpoint::convert::convert_floats;
use burn_dist_checkpoint::hf::{Float8, Folder, FolderWriter, Form, Names, Tensor, Wanted};
use burn_dist_checkpoint::{KeyReport, Mismatch, NonFinite};
use burn_dist_front::checkpoint::float8;

use super::StateError;
use super::parameters::Parameter;
use crate::mesh::DType;

/// Returns the tensors that hold parameters.
pub(super) fn named(
    parameters: &[Parameter],
    names: &Names,
) -> Result<Vec<(String, Form)>, StateError> {
    let each = parameters.iter().map(|parameter| {
        let tensor = names.tensor(&parameter.path);
        tensor.ok_or_else(|| StateError::Unnamed {
            path: parameter.path.clone(),
        })
    });
    each.collect()
}

/// Returns the differences between the parameters of a module and the tensors of a folder that hold them.
pub(super) fn compare(
    folder: &Folder,
    names: &Names,
    parameters: &[Parameter],
    named: &[(String, Form)],
) -> KeyReport {
    let is_float8 = |parameter: &Parameter, name: &str, form: Form| {
        let is_matrix = Float8::of(form, &parameter.shape).is_some();
        folder.is_float8(name) && parameter.dtype.is_float() && is_matrix
    };
    let members = parameters.iter().zip(named);
    let members = members.flat_map(|(parameter, (name, form))| {
        let members = form.members(name, &parameter.shape).into_iter();
        members.map(move |member| (parameter, member))
    });
    let members: Vec<_> = members.collect();
    let wanted = members.iter().map(|(parameter, (name, form, shape))| {
        let found = folder.tensor(name).and_then(|(dtype, _)| dtype);
        let is_kind = found.is_some_and(|found| are_one_kind(found, parameter.dtype))
            || is_float8(parameter, name, *form);
        Wanted {
            name,
            form: *form,
            dtype: (!is_kind).then_some(parameter.dtype),
            shape,
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

/// The tensors of a folder with a module.
pub(super) struct Layout {
    /// In the order of the writer, in which all processes read.
    pub(super) described: Vec<Tensor>,
    /// The tensors in 8 bits, by the names of their factors.
    pub(super) factors: BTreeMap<String, String>,
}

/// Returns the tensors that a folder has with these parameters: their names, forms, types and shapes.
///
/// # Errors
/// [`StateError::Unsaved`] for what cannot be in 8 bits.
pub(super) fn layout<'a>(
    parts: impl Iterator<Item = (&'a String, Form, DType, Vec<usize>)>,
    export: &Export,
) -> Result<Layout, StateError> {
    let mut described: Vec<Tensor> = Vec::new();
    let mut factors: BTreeMap<String, String> = BTreeMap::new();
    let mut known: BTreeSet<&String> = BTreeSet::new();
    for (name, form, dtype, shape) in parts {
        known.insert(name);
        if !export.float8.contains(name) {
            for (name, form, shape) in form.members(name, &shape) {
                described.push(Tensor::new(name, dtype, form.stored_shape(&shape)));
            }
            continue;
        }
        let stored = form.stored_shape(&shape);
        let float8 = Float8::of(form, &shape).filter(|_| dtype.is_float());
        let float8 = float8.ok_or_else(|| StateError::Unsaved {
            name: name.clone(),
            reason: "only matrices of floats are written in 8 bits".into(),
        })?;
        let of = Float8::factors_name(name);
        described.push(Tensor::float8(name, stored));
        described.push(Tensor::new(&of, DType::F32, float8.factors_shape().into()));
        factors.insert(of, name.clone());
    }
    if let Some(name) = export.float8.iter().find(|name| !known.contains(name)) {
        return Err(StateError::Unsaved {
            name: name.clone(),
            reason: "it is to be in 8 bits, and no parameter is held by it".into(),
        });
    }
    described.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
    Ok(Layout { described, factors })
}

/// Returns the type that a tensor is written in.
///
/// # Errors
/// [`StateError::Unsaved`] if its elements cannot be.
pub(super) fn written_as(name: &str, from: DType, export: &Export) -> Result<DType, StateError> {
    let dtype = export.dtypes.get(name).copied().unwrap_or(from);
    if from != dtype && !(from.is_float() && dtype.is_float()) {
        return Err(StateError::Unsaved {
            name: name.to_string(),
            reason: format!("its elements are {from}, and {dtype} is asked for"),
        });
    }
    Ok(dtype)
}

/// The part of a parameter in 8 bits that a tensor has.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Bits,
    Factors,
}

/// The elements of a parameter as they were read: bytes in a type.
pub(super) struct Elements<'a> {
    pub(super) shape: &'a [usize],
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
}

/// Writes a parameter, or one half of it in 8 bits; returns which values of it are not finite.
///
/// # Errors
/// [`StateError`].
pub(super) fn write(
    writer: &mut FolderWriter,
    name: &str,
    form: Form,
    dtype: DType,
    elements: &Elements<'_>,
    half: Option<Half>,
) -> Result<Option<NonFinite>, StateError> {
    let bytes = converted(name, elements.bytes, elements.dtype, dtype)?;
    let found = NonFinite::among(name, dtype, &bytes);
    let Some((half, float8)) = half.zip(Float8::of(form, elements.shape)) else {
        writer.write_parameter(name, form, elements.shape, &bytes)?;
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
        Half::Bits => writer.write_parameter(name, form, elements.shape, &bits)?,
        Half::Factors => {
            let bytes: Vec<u8> = factors.into_iter().flat_map(f32::to_le_bytes).collect();
            writer.write(name, &bytes)?;
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
