//! Weights from `*.safetensors` onto a mesh.

use std::path::Path;

use burn_core::tensor::Device;

use super::error::FolderError;
use super::model::{InFolders, Tied};
use crate::checkpoint::hf::{self, Described, Folder, Form, Region, Request, check, tensors};
use crate::checkpoint::{CheckpointError, KeyReport, Match, NonFinite};
use crate::trainer::job;

/// Two tensors are compared by so many bytes.
const BLOCK_BYTES: usize = 4 << 20;

/// Returns a folder of weights for a model of these sizes.
pub fn weights<M: InFolders>(path: &Path, config: &M::Config) -> job::Folder<M> {
    let config = config.clone();
    job::Folder {
        path: path.to_path_buf(),
        load: Box::new(move |model, path, device| Ok(load_reported(model, &config, path, device)?)),
    }
}

/// Replaces every parameter of the model by the folder's, laid out as the model says. Each process reads what its ranks
/// hold, and none makes values that are then replaced.
///
/// The folder's tensors are compared with the model's before any is read.
///
/// # Errors
/// [`FolderError::Tensors`] with every missing, unexpected or misshapen tensor; or why a file cannot be read.
pub fn load<M: InFolders>(
    model: M,
    config: &M::Config,
    dir: &Path,
    device: &Device,
) -> Result<M, FolderError> {
    load_reported(model, config, dir, device).map(|(model, _)| model)
}

/// Does the same as [`load`], and returns the values that are not finite, among those that this process has read.
///
/// # Errors
/// As [`load`].
pub fn load_reported<M: InFolders>(
    model: M,
    config: &M::Config,
    dir: &Path,
    device: &Device,
) -> Result<(M, Option<NonFinite>), FolderError> {
    let folder = Folder::open(dir)?;
    let names = M::names(config);
    let mut report = check(&model, &folder, &names)?;
    let mut problems = Vec::new();
    if let Some(Tied { name, of, field }) = M::TIED.filter(|_| M::is_tied(config)) {
        report.unexpected.retain(|found| found != name);
        if !is_copy(&folder, name, of)? {
            problems.push(format!(
                "{name} is another one than {of}, and config.json says that they are one ({field})"
            ));
        }
    }
    let wanted = tensors(&model, &names)?;
    differences(&report, &folder, (&wanted, M::TIED), &mut problems);
    if !problems.is_empty() {
        let path = dir.to_path_buf();
        return Err(FolderError::Tensors { path, problems });
    }
    // A tensor that is another one is left where it is.
    let (model, loaded) = hf::load_reported(model, &folder, &names, Match::Subset, device)?;
    Ok((model, loaded.non_finite))
}

/// Adds a line for every difference; `wanted` are the tensors that the model needs.
fn differences(
    report: &KeyReport,
    folder: &Folder,
    (wanted, tied): (&[Described], Option<Tied>),
    problems: &mut Vec<String>,
) {
    for tensor in wanted.iter().filter(|it| report.missing.contains(&it.name)) {
        let hint = match tied.filter(|tied| tensor.name == tied.name) {
            Some(Tied { of, field, .. }) => {
                format!(", and config.json does not say that {of} takes its place ({field})")
            }
            None => String::new(),
        };
        let Described { name, shape, .. } = tensor;
        problems.push(format!("missing {name}, shape {shape:?}{hint}"));
    }
    let is_wanted = |name: &&String| wanted.iter().any(|tensor| tensor.name == **name);
    for name in report.missing.iter().filter(|name| !is_wanted(name)) {
        problems.push(format!("missing {name}, the factors of a tensor in 8 bits"));
    }
    for other in &report.mismatched {
        let (name, found, wanted) = (&other.key, &other.found_shape, &other.wanted_shape);
        problems.push(match found == wanted {
            true => format!(
                "{name} has elements of type {}: floats are read, of 16, 32 or 64 bits",
                other.found_dtype
            ),
            false => format!("{name} has shape {found:?}, and the model needs {wanted:?}"),
        });
    }
    for name in &report.unexpected {
        let shape = folder.tensor(name).map_or(&[][..], |(_, shape)| shape);
        problems.push(format!("unexpected {name}, shape {shape:?}"));
    }
}

/// Returns whether a tensor is not there, or has the bits of another one.
fn is_copy(folder: &Folder, name: &str, of: &str) -> Result<bool, CheckpointError> {
    let Some(copy) = folder.tensor(name) else {
        return Ok(true);
    };
    let ((Some(dtype), shape), true) = (copy, folder.tensor(of) == Some(copy)) else {
        return Ok(false);
    };
    let numel: usize = shape.iter().product();
    let block = BLOCK_BYTES / dtype.size();
    let read = |name: &str, start: usize| {
        let region = Region::range(numel, start..numel.min(start + block));
        let region = region.map_err(|source| CheckpointError::Region {
            key: name.to_string(),
            source,
        })?;
        let mut bytes = vec![0; region.numel() * dtype.size()];
        let mut request = Request::new(name, dtype, shape, region, &mut bytes);
        folder.read(Form::Same, &mut request)?;
        Ok::<_, CheckpointError>(bytes)
    };
    for start in (0..numel).step_by(block) {
        if read(name, start)? != read(of, start)? {
            return Ok(false);
        }
    }
    Ok(true)
}
