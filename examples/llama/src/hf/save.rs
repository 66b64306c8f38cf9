//! Writing a model so that [`super::load`], and Hugging Face's own library, read it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use serde_json::{Map, Value, json};

use super::HfError;
use super::config::HfConfig;
use super::names::{Entry, PathStack, entries, stored_as};
use crate::data::tokenizer::Text;
use crate::model::{Llama, LlamaConfig};

/// Writes `config.json`, `tokenizer.json` and `model.safetensors` (F32) into a folder, which is made if need be.
///
/// Each file is written under another name first, and takes its own when all are complete: a full disk leaves an earlier
/// model there as it was. One tensor at a time is held in memory.
///
/// # Errors
/// [`HfError::Write`]; [`HfError::Device`].
pub fn save<B: Backend>(
    model: &Llama<B>,
    config: &LlamaConfig,
    text: &Text,
    dir: &Path,
) -> Result<(), HfError> {
    let write = |path: &Path| {
        let path = path.to_path_buf();
        move |source| HfError::Write { path, source }
    };
    let names = ["model.safetensors", "tokenizer.json", "config.json"];
    let partial = |name: &str| dir.join(format!("{name}.partial"));

    let result = (|| {
        write_tensors(model, config, &partial(names[0]), &dir.join(names[0]))?;
        text.write(&partial(names[1]))
            .map_err(|error| write(&dir.join(names[1]))(io::Error::other(error)))?;
        let json = serde_json::to_string_pretty(&HfConfig::from_llama(config, text.end()))
            .expect("plain fields always have a JSON form");
        std::fs::write(partial(names[2]), json + "\n").map_err(write(&dir.join(names[2])))?;
        for name in names {
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
    partial: &Path,
    path: &Path,
) -> Result<(), HfError> {
    let fail = |source| HfError::Write {
        path: path.to_path_buf(),
        source,
    };
    let header = header(&entries(model, config.head_dim()));
    let mut writer = Writer {
        file: create(partial, &header).map_err(fail),
        target: path.to_path_buf(),
        path: PathStack::default(),
        head_dim: config.head_dim(),
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
fn header(entries: &[Entry]) -> Vec<u8> {
    let mut tensors = Map::from_iter([("__metadata__".to_string(), json!({"format": "pt"}))]);
    let mut offset = 0;
    for entry in entries {
        let end = offset + 4 * entry.shape.iter().product::<usize>();
        let shape = entry.form.stored_shape(&entry.shape);
        tensors.insert(
            entry.name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut json = Value::Object(tensors).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    bytes
}

/// Writes the parameters in the order in which [`entries`] lists them; reads all of them, whatever has failed: other processes read along, and wait for each other.
struct Writer {
    /// Or the first error.
    file: Result<BufWriter<File>, HfError>,
    target: PathBuf,
    path: PathStack,
    head_dim: usize,
}

impl Writer {
    fn write<B: Backend, const D: usize>(
        &mut self,
        param: &Param<Tensor<B, D>>,
    ) -> Result<(), HfError> {
        let (name, form) = stored_as(&self.path.path(), self.head_dim);
        let tensor = param.val();
        let shape = tensor.dims();
        let data = tensor.try_into_data().map_err(|error| HfError::Device {
            name,
            reason: error.to_string(),
        })?;
        let Ok(file) = &mut self.file else {
            return Ok(());
        };
        let values: Vec<f32> = data.iter::<f32>().collect();
        let mut bytes = Vec::with_capacity(4 * values.len());
        for value in form.pack(values, &shape) {
            bytes.extend(value.to_le_bytes());
        }
        file.write_all(&bytes).map_err(|source| HfError::Write {
            path: self.target.clone(),
            source,
        })
    }
}

impl<B: Backend> ModuleVisitor<B> for Writer {
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
