//! Targets of conversions.

use super::source::Source;
use super::{Conversion, ConvertError, Kind, floats};
use crate::error::{CheckpointError, io_error};
use crate::format::SaveId;
use crate::hf::{FolderWriter, Form, Tensor as HfTensor};
use crate::records::{Layout, Parameter, RecordProblem, bpk_layout, mpk_layout};
use crate::region::Region;
use crate::save::{Checkpoints, SavePlan, Tensor};
use crate::storage::Storage;
use burn_dist_layout::by_rows;
use burn_dist_mesh::{DType, MeshShape};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// So much of a tensor is in memory at once, up to three times.
const CHUNK_BYTES: usize = if cfg!(test) { 48 } else { 128 << 20 };
/// Files beside the tensors are no larger.
const OTHER_BYTES: usize = 256 << 20;

/// Writes all parameters of `source`, with elements of these types.
pub(super) fn write(
    conversion: &Conversion<'_>,
    kind: Kind,
    source: &mut Source,
    dtypes: &[DType],
) -> Result<PathBuf, ConvertError> {
    let to = conversion.to;
    match kind {
        Kind::Checkpoint => checkpoint(conversion, source, dtypes),
        Kind::Hf => folder(conversion, source, dtypes).map(|()| to.to_path_buf()),
        Kind::Mpk | Kind::Bpk => {
            record(conversion, kind, source, dtypes).map(|()| to.to_path_buf())
        }
    }
}

/// Gives the elements of some regions to `each`, in the type that they get.
fn convert(
    source: &Source,
    index: usize,
    dtype: DType,
    regions: impl Iterator<Item = Region>,
    mut each: impl FnMut(&Region, &[u8]) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let from = source.entries[index].dtype;
    let mut converted = Vec::new();
    source.read(index, regions, |region, bytes| {
        if from == dtype {
            return each(region, bytes);
        }
        converted.resize(region.numel() * dtype.size(), 0);
        if !floats::convert(from, dtype, bytes, &mut converted) {
            let key = source.entries[index].key.clone();
            return Err(ConvertError::Range { key, dtype });
        }
        each(region, &converted)
    })
}

/// Returns a tensor of so many elements as parts that follow each other, of at most so many elements.
fn parts(numel: usize, step: usize) -> impl Iterator<Item = Region> {
    let part = move |start: usize| Region::range(numel, start..numel.min(start + step));
    // Within the tensor.
    (0..numel)
        .step_by(step.max(1))
        .filter_map(move |start| part(start).ok())
}

fn checkpoint(
    conversion: &Conversion<'_>,
    source: &Source,
    dtypes: &[DType],
) -> Result<PathBuf, ConvertError> {
    let one = MeshShape::new([("fsdp", 1)]);
    let mesh = one.unwrap_or_else(|_| unreachable!("an axis of one rank is a mesh"));
    let entries = source.entries.iter().zip(dtypes);
    let tensors = entries.map(|(entry, dtype)| {
        Tensor::new(entry.key.as_str(), *dtype, by_rows(&mesh, &entry.shape))
    });
    let plan = SavePlan::new(&mesh, tensors.collect(), &[0])?;
    let checkpoints = Checkpoints::on(conversion.storage.clone(), conversion.to);
    let save_id = SaveId::random().map_err(|error| ConvertError::Random(error.to_string()))?;
    checkpoints.lock()?;
    let save = checkpoints.save(source.step, save_id)?;
    let mut failure = None;
    let part = save.write(
        &plan,
        0,
        |share, file| {
            let found = source
                .entries
                .binary_search_by(|entry| entry.key.cmp(&share.key));
            let index = found.unwrap_or_else(|_| unreachable!("the plan has these parameters"));
            let (entry, dtype) = (&source.entries[index], dtypes[index]);
            let regions = parts(entry.numel(), step(entry.dtype, dtype));
            let written = convert(source, index, dtype, regions, |_, bytes| {
                Ok(file.write(bytes)?)
            });
            written.map_err(|error| match error {
                ConvertError::Checkpoint(error) => error,
                error => {
                    let key = share.key.clone();
                    let source = error.to_string().into();
                    failure = Some(error);
                    CheckpointError::Source { key, source }
                }
            })
        },
        |_| {},
    );
    let part = part.map_err(|error| {
        save.abandon();
        failure.map_or(ConvertError::Checkpoint(error), |failure| failure)
    })?;
    Ok(save.commit(&plan, vec![part], source.metadata.clone())?)
}

fn folder(
    conversion: &Conversion<'_>,
    source: &Source,
    dtypes: &[DType],
) -> Result<(), ConvertError> {
    let (mut tensors, mut unknown) = (Vec::new(), Vec::new());
    let mut rows: BTreeMap<String, Part> = BTreeMap::new();
    for (index, entry) in source.entries.iter().enumerate() {
        let row = match conversion.names {
            None => Some((entry.key.clone(), Form::Same)),
            Some(names) => names.tensor(&entry.key),
        };
        let Some((name, form)) = row else {
            unknown.push(entry.key.clone());
            continue;
        };
        if !form.fits(&entry.shape) {
            let (key, shape) = (entry.key.clone(), entry.shape.clone());
            return Err(CheckpointError::Form { key, form, shape }.into());
        }
        let members = form.members(&name, &entry.shape);
        let of = members.len();
        for (number, (name, form, shape)) in members.into_iter().enumerate() {
            let stored = form.stored_shape(&shape);
            tensors.push(HfTensor::new(name.as_str(), dtypes[index], stored));
            let part = Part {
                index,
                form,
                shape,
                number,
                of,
            };
            rows.insert(name, part);
        }
    }
    if !unknown.is_empty() {
        return Err(ConvertError::NoRow { names: unknown });
    }
    let storage = conversion.storage.clone();
    let mut writer =
        FolderWriter::create_on(storage, conversion.to, tensors, conversion.shard_bytes)?;
    if source.kind == Kind::Hf {
        copy_others(conversion, &mut writer)?;
    }
    let names: Vec<String> = writer
        .tensors()
        .iter()
        .map(|tensor| tensor.name.clone())
        .collect();
    for name in names {
        let Some(part) = rows.get(&name) else {
            unreachable!("the writer has these tensors")
        };
        tensor(&mut writer, &name, part, source, dtypes[part.index])?;
    }
    Ok(writer.commit()?)
}

/// The contents of a tensor: a parameter, or one of the matrices that it is stacked of.
struct Part {
    /// The parameter.
    index: usize,
    form: Form,
    shape: Vec<usize>,
    /// Which one of how many parts of the parameter it is.
    number: usize,
    of: usize,
}

/// Writes one tensor: by parts that follow each other, or by whole rows of it.
fn tensor(
    writer: &mut FolderWriter,
    name: &str,
    part: &Part,
    source: &Source,
    dtype: DType,
) -> Result<(), ConvertError> {
    let Part {
        index,
        form,
        number,
        of,
        ..
    } = *part;
    let entry = &source.entries[index];
    let step = step(entry.dtype, dtype);
    let Some((inputs, outputs)) = form.matrix(&part.shape) else {
        let regions = parts(entry.numel(), step);
        return convert(source, index, dtype, regions, |_, bytes| {
            Ok(writer.write(name, bytes)?)
        });
    };
    let columns = (step / inputs.max(1))
        .next_multiple_of(form.step())
        .max(form.step());
    let region = |start: usize| {
        let count = columns.min(outputs - start);
        Region::new(
            vec![of, inputs, outputs],
            vec![number, 0, start],
            vec![1, inputs, count],
        )
        .ok()
    };
    // Within the matrix.
    let regions = (0..outputs).step_by(columns).filter_map(region);
    let mut rows = Vec::new();
    convert(source, index, dtype, regions, |region, bytes| {
        let count = region.extent()[2];
        rows.resize(bytes.len(), 0);
        form.pack((inputs, count), 0..count, dtype.size(), bytes, &mut rows);
        Ok(writer.write(name, &rows)?)
    })
}

/// Copies the files beside the tensors of a folder: settings and tokenizer, not weights in other forms.
fn copy_others(conversion: &Conversion<'_>, writer: &mut FolderWriter) -> Result<(), ConvertError> {
    let (storage, from) = (&conversion.storage, conversion.from);
    let names = storage.list(from);
    let mut names = names.map_err(io_error("list the directory", from))?;
    names.sort();
    for name in names.iter().filter(|name| is_other(name)) {
        let path = from.join(name);
        let file = storage.open_linked(&path);
        let file = file.map_err(io_error("open the file", &path))?;
        let length = usize::try_from(file.num_bytes()).unwrap_or(usize::MAX);
        if length > OTHER_BYTES {
            tracing::warn!(path = %path.display(), "a file that is too large for settings is not copied");
            continue;
        }
        let mut bytes = vec![0; length];
        let read = file.read_at(&mut bytes, 0);
        read.map_err(io_error("read the file", &path))?;
        if let Some(dtype) = conversion.dtype.filter(|_| name == "config.json") {
            bytes = with_dtype(bytes, dtype);
        }
        writer.write_other(name, &bytes)?;
    }
    Ok(())
}

/// Returns whether a file says how a model is used.
fn is_other(name: &str) -> bool {
    const ENDS: [&str; 5] = [".json", ".txt", ".model", ".jinja", ".tiktoken"];
    !name.starts_with('.')
        && ENDS.iter().any(|end| name.ends_with(end))
        && !name.ends_with(".index.json")
}

/// Changes the type of the elements that a `config.json` names, if it names one.
fn with_dtype(config: Vec<u8>, dtype: DType) -> Vec<u8> {
    let name = match dtype {
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    };
    let Ok(mut json) = serde_json::from_slice::<serde_json::Map<_, _>>(&config) else {
        return config;
    };
    let fields = ["torch_dtype", "dtype"];
    let fields: Vec<&str> = fields
        .into_iter()
        .filter(|field| json.contains_key(*field))
        .collect();
    if fields.is_empty() {
        return config;
    }
    for field in fields {
        json.insert(field.to_owned(), name.into());
    }
    format!("{:#}\n", serde_json::Value::Object(json)).into_bytes()
}

fn record(
    conversion: &Conversion<'_>,
    kind: Kind,
    source: &Source,
    dtypes: &[DType],
) -> Result<(), ConvertError> {
    let to = conversion.to;
    let entries = source.entries.iter().zip(dtypes);
    let parameters = entries.map(|(entry, dtype)| Parameter {
        key: entry.key.clone(),
        dtype: *dtype,
        shape: entry.shape.clone(),
        id: entry.id,
    });
    let parameters: Vec<Parameter> = parameters.collect();
    let problem = |problem: RecordProblem| {
        let path = to.to_path_buf();
        CheckpointError::Record { path, problem }
    };
    let layout = match kind {
        Kind::Bpk => bpk_layout(&parameters).map_err(problem)?,
        _ => {
            let missing = parameters.iter().filter(|parameter| parameter.id.is_none());
            let mut ids = new_ids(missing.count())?.into_iter();
            mpk_layout(&parameters, || ids.next().unwrap_or_default()).map_err(problem)?
        }
    };
    let storage = &*conversion.storage;
    let folder = to.parent().unwrap_or(Path::new(""));
    let made = storage.create_dir(folder);
    made.map_err(io_error("create the directory", folder))?;
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let partial = to.with_file_name(name);
    let written = stream(storage, &partial, source, dtypes, &layout);
    if written.is_err() && storage.remove_file(&partial).is_err() {
        tracing::warn!(path = %partial.display(), "a file that was given up cannot be removed");
    }
    written?;
    let renamed = storage.rename(&partial, to);
    renamed.map_err(io_error("rename the file", &partial))?;
    let synced = storage.sync_dir(folder);
    Ok(synced.map_err(io_error("sync the directory", folder))?)
}

/// Writes a file of this layout, and syncs it.
fn stream(
    storage: &dyn Storage,
    path: &Path,
    source: &Source,
    dtypes: &[DType],
    layout: &Layout,
) -> Result<(), ConvertError> {
    // Left by an interrupted conversion.
    storage.remove_file(path).ok();
    let file = storage.create(path);
    let mut file = file.map_err(io_error("create the file", path))?;
    let mut append = |bytes: &[u8]| -> Result<(), ConvertError> {
        let appended = file.append(bytes);
        Ok(appended.map_err(io_error("write the file", path))?)
    };
    for (before, index) in &layout.parts {
        append(before)?;
        let (entry, dtype) = (&source.entries[*index], dtypes[*index]);
        let regions = parts(entry.numel(), step(entry.dtype, dtype));
        convert(source, *index, dtype, regions, |_, bytes| append(bytes))?;
    }
    append(&layout.end)?;
    Ok(file.sync().map_err(io_error("sync the file", path))?)
}

/// Returns ids of parameters, as Burn makes them: at random.
fn new_ids(count: usize) -> Result<Vec<u64>, ConvertError> {
    let id = |_| getrandom::u64().map_err(|error| ConvertError::Random(error.to_string()));
    (0..count).map(id).collect()
}

/// Returns how many elements are in memory at once.
fn step(from: DType, to: DType) -> usize {
    CHUNK_BYTES / from.size().max(to.size()).max(1)
}
