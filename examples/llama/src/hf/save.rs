//! Writing a model so that [`super::load`], and Hugging Face's own library, read it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, bf16, f16};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::HfError;
use super::config::HfConfig;
use super::names::{Entry, PathStack, entries, stored_as};
use super::origin::{Dtypes, Origin};
use crate::data::tokenizer::Text;
use crate::model::{Llama, LlamaConfig};

/// Refuses a folder in which a saved model would not be found.
///
/// # Errors
/// [`HfError::Occupied`].
pub fn check_folder(dir: &Path) -> Result<(), HfError> {
    match dir.join("model.safetensors.index.json").exists() {
        true => Err(HfError::Occupied {
            path: dir.to_path_buf(),
        }),
        false => Ok(()),
    }
}

/// Writes `config.json`, `tokenizer.json` and `model.safetensors` into a folder, which is made if need be.
///
/// A model that came from a folder takes along what it brought, its `origin`: `config.json` as it was, every tensor in
/// the type that it had there, an output that is the embedding not twice, and the files of the tokenizer. One that was
/// made here is written in F32.
///
/// Each file is written under another name first, and takes its own when all are complete: a full disk leaves an
/// earlier model there as it was. One tensor at a time is held in memory.
///
/// # Errors
/// [`HfError::Occupied`]; [`HfError::Write`]; [`HfError::Device`]; [`HfError::Range`].
pub fn save<B: Backend>(
    model: &Llama<B>,
    config: &LlamaConfig,
    text: &Text,
    origin: Option<&Origin>,
    dir: &Path,
) -> Result<(), HfError> {
    check_folder(dir)?;
    let write = |path: &Path| {
        let path = path.to_path_buf();
        move |source| HfError::Write { path, source }
    };
    let json = match origin {
        Some(origin) => serde_json::to_string_pretty(&origin.config),
        None => serde_json::to_string_pretty(&HfConfig::from_llama(config, text.end())),
    };
    let json = json.expect("plain fields always have a JSON form") + "\n";
    let companions = origin.map_or(&[][..], |origin| &origin.companions);
    let mut names = vec!["model.safetensors", "tokenizer.json", "config.json"];
    let more = companions.iter().map(|(name, _)| *name);
    names.extend(more.filter(|name| *name != "tokenizer.json"));
    let partial = |name: &str| dir.join(format!("{name}.partial"));

    let result = (|| {
        let no_dtypes = Dtypes::new();
        let dtypes = origin.map_or(&no_dtypes, |origin| &origin.dtypes);
        write_tensors(
            model,
            config,
            dtypes,
            &partial(names[0]),
            &dir.join(names[0]),
        )?;
        if !companions.iter().any(|(name, _)| *name == names[1]) {
            text.write(&partial(names[1]))
                .map_err(|error| write(&dir.join(names[1]))(io::Error::other(error)))?;
        }
        let others = companions.iter().map(|(name, bytes)| (*name, &bytes[..]));
        for (name, bytes) in others.chain([(names[2], json.as_bytes())]) {
            std::fs::write(partial(name), bytes).map_err(write(&dir.join(name)))?;
        }
        for name in &names {
            std::fs::rename(partial(name), dir.join(name)).map_err(write(&dir.join(name)))?;
        }
        Ok(())
    })();
    if result.is_err() {
        for name in names {
            // What cannot be removed is harmless: nothing reads it.
            let _ = std::fs::remove_file(partial(name));
        }
    }
    result
}

/// Reads what another process saves: a tensor whose parts lie in several processes is gathered by all of them.
///
/// # Errors
/// [`HfError::Device`].
pub fn read_along<B: Backend>(model: &Llama<B>) -> Result<(), HfError> {
    #[derive(Default)]
    struct Reader {
        path: PathStack,
        error: Option<HfError>,
    }
    impl<B: Backend> ModuleVisitor<B> for Reader {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.enter(name);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let (None, Err(error)) = (&self.error, param.val().try_into_data()) {
                self.error = Some(HfError::Device {
                    name: self.path.path(),
                    reason: error.to_string(),
                });
            }
        }
    }
    let mut reader = Reader::default();
    model.visit(&mut reader);
    reader.error.map_or(Ok(()), Err)
}

fn write_tensors<B: Backend>(
    model: &Llama<B>,
    config: &LlamaConfig,
    dtypes: &Dtypes,
    partial: &Path,
    path: &Path,
) -> Result<(), HfError> {
    let fail = |source| HfError::Write {
        path: path.to_path_buf(),
        source,
    };
    let header = header(&entries(model, config.head_dim()), dtypes);
    let mut writer = Writer {
        file: create(partial, &header).map_err(fail),
        target: path.to_path_buf(),
        path: PathStack::default(),
        head_dim: config.head_dim(),
        dtypes,
    };
    model.visit(&mut writer);
    // Only closing the file to the disk shows that everything fitted.
    let file = writer
        .file?
        .into_inner()
        .map_err(|error| fail(error.into_error()))?;
    file.sync_all().map_err(fail)
}

/// Begins a file, in a folder that is made if need be.
fn create(path: &Path, header: &[u8]) -> io::Result<BufWriter<File>> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(header)?;
    Ok(file)
}

/// The header of a safetensors file: its length in 8 bytes, then JSON padded with spaces to a multiple of 8.
fn header(entries: &[Entry], dtypes: &Dtypes) -> Vec<u8> {
    let mut tensors = Map::from_iter([("__metadata__".to_string(), json!({"format": "pt"}))]);
    let mut offset = 0;
    for entry in entries {
        let dtype = stored_dtype(dtypes, &entry.name);
        let size = match dtype {
            Dtype::F16 | Dtype::BF16 => 2,
            _ => 4,
        };
        let end = offset + size * entry.shape.iter().product::<usize>();
        let shape = entry.form.stored_shape(&entry.shape);
        tensors.insert(
            entry.name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut json = Value::Object(tensors).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    bytes
}

/// The type in which a tensor is written: the one that it came in, or F32.
fn stored_dtype(dtypes: &Dtypes, name: &str) -> Dtype {
    dtypes.get(name).copied().unwrap_or(Dtype::F32)
}

/// The bytes of values in a type.
///
/// # Errors
/// [`HfError::Range`] if a number has no place in it.
fn bytes_of(values: &[f32], dtype: Dtype, name: &str) -> Result<Vec<u8>, HfError> {
    let range = |value: f32| {
        let half = f16::from_f32(value);
        // What is not finite is so in all types.
        match half.is_finite() || !value.is_finite() {
            true => Ok(half.to_le_bytes()),
            false => Err(HfError::Range {
                name: name.to_string(),
            }),
        }
    };
    let values = values.iter();
    Ok(match dtype {
        Dtype::F16 => values
            .map(|value| range(*value))
            .collect::<Result<Vec<_>, _>>()?
            .concat(),
        Dtype::BF16 => values
            .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
            .collect(),
        _ => values.flat_map(|value| value.to_le_bytes()).collect(),
    })
}

/// Writes the parameters in the order in which [`entries`] lists them; reads all of them, whatever has failed: other
/// processes read along, and wait for each other.
struct Writer<'a> {
    /// Or the first error.
    file: Result<BufWriter<File>, HfError>,
    target: PathBuf,
    path: PathStack,
    head_dim: usize,
    dtypes: &'a Dtypes,
}

impl Writer<'_> {
    fn write<B: Backend, const D: usize>(
        &mut self,
        param: &Param<Tensor<B, D>>,
    ) -> Result<(), HfError> {
        let (name, form) = stored_as(&self.path.path(), self.head_dim);
        let tensor = param.val();
        let shape = tensor.dims();
        let data = tensor.try_into_data().map_err(|error| HfError::Device {
            name: name.clone(),
            reason: error.to_string(),
        })?;
        let Ok(file) = &mut self.file else {
            return Ok(());
        };
        let values: Vec<f32> = data.iter::<f32>().collect();
        let dtype = stored_dtype(self.dtypes, &name);
        let bytes = bytes_of(&form.pack(values, &shape), dtype, &name)?;
        file.write_all(&bytes).map_err(|source| HfError::Write {
            path: self.target.clone(),
            source,
        })
    }
}

impl<B: Backend> ModuleVisitor<B> for Writer<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let (Err(error), true) = (self.write(param), self.file.is_ok()) {
            self.file = Err(error);
        }
    }
}
