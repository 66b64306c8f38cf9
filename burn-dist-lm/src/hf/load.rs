//! Weights from `*.safetensors` onto a mesh.

use std::path::Path;

use burn::tensor::Device;
use burn_dist::checkpoint::hf::{self, Described, Folder, Form, Region, Request, check, tensors};
use burn_dist::checkpoint::{CheckpointError, KeyReport, Match, NonFinite};

use super::HfError;
use super::folder::names;
use crate::model::{Llama, LlamaConfig};

/// The name of the output matrix, which a folder leaves out if it is the embedding.
const OUTPUT: &str = "lm_head.weight";
/// The name of the embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// Two tensors are compared by so many bytes.
const BLOCK_BYTES: usize = 4 << 20;

/// Replaces every parameter of the model by the folder's, laid out as the model says. Each process reads what its ranks
/// hold, and none makes values that are then replaced.
///
/// The folder's tensors are compared with the model's before any is read.
///
/// # Errors
/// [`HfError::Tensors`] with every missing, unexpected or misshapen tensor; or why a file cannot be read.
pub fn load(
    model: Llama,
    config: &LlamaConfig,
    dir: &Path,
    device: &Device,
) -> Result<Llama, HfError> {
    load_reported(model, config, dir, device).map(|(model, _)| model)
}

/// Does the same as [`load`], and returns the values that are not finite, among those that this process has read.
///
/// # Errors
/// As [`load`].
pub fn load_reported(
    model: Llama,
    config: &LlamaConfig,
    dir: &Path,
    device: &Device,
) -> Result<(Llama, Option<NonFinite>), HfError> {
    let folder = Folder::open(dir)?;
    let names = names(config);
    let mut report = check(&model, &folder, &names)?;
    let mut problems = Vec::new();
    if config.tied {
        report.unexpected.retain(|name| name != OUTPUT);
        if !is_copy(&folder, OUTPUT, EMBEDDING)? {
            problems.push(format!(
                "{OUTPUT} is another one than {EMBEDDING}, and config.json says that they are one (tie_word_embeddings)"
            ));
        }
    }
    differences(&report, &folder, &tensors(&model, &names)?, &mut problems);
    if !problems.is_empty() {
        let path = dir.to_path_buf();
        return Err(HfError::Tensors { path, problems });
    }
    // An output that is the embedding is left where it is.
    let (model, loaded) = hf::load_reported(model, &folder, &names, Match::Subset, device)?;
    Ok((model, loaded.non_finite))
}

/// Adds a line for every difference; `wanted` are the tensors that the model needs.
fn differences(
    report: &KeyReport,
    folder: &Folder,
    wanted: &[Described],
    problems: &mut Vec<String>,
) {
    for tensor in wanted.iter().filter(|it| report.missing.contains(&it.name)) {
        let hint = match tensor.name == OUTPUT {
            true => format!(
                ", and config.json does not say that {EMBEDDING} takes its place (tie_word_embeddings)"
            ),
            false => String::new(),
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

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleMapper, Param};
    use burn::tensor::Tensor;
    use burn_dist::checkpoint::hf::Export;

    use super::*;
    use burn_dist::trainer::args::{AxesArgs, MeshArgs};
    use burn_dist::trainer::mesh::Mesh;

    /// All parameters times a number.
    struct Times(f32);

    impl ModuleMapper for Times {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.mul_scalar(self.0))
        }
    }

    #[test]
    fn weights_that_are_no_numbers_are_found_as_they_are_written_and_read() {
        let axes = AxesArgs {
            mesh: Some("fsdp=2".parse().unwrap()),
            ..AxesArgs::default()
        };
        let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes)).unwrap();
        let (config, device) = (LlamaConfig::test(), mesh.device());
        let fresh = || {
            let model = config.init(device);
            mesh.parallelize(model).unwrap()
        };
        for (factor, expected) in [(1.0, 0), (f32::NAN, config.num_params() as u64)] {
            let dir = tempfile::tempdir().unwrap();
            let model = fresh().map(&mut Times(factor));
            let (path, names) = (dir.path(), names(&config));
            let saved = hf::save(&model, &names, path, &Export::default(), device).unwrap();
            let (_, found) = load_reported(fresh(), &config, path, device).unwrap();
            assert_eq!(saved, found);
            assert_eq!(found.map_or(0, |found| found.elements), expected);
        }
    }
}
