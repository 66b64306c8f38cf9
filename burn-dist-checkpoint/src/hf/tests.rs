//! Folders: any region of any form, hostile files, crashes, names.

mod crash;
mod hostile;
mod names;
mod regions;

use super::{Folder, FolderWriter, Form, Tensor};
use crate::error::CheckpointError;
use crate::storage::memory::MemoryStorage;
use crate::storage::{ReadFile, Storage};
use burn_dist_mesh::DType;
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "home/model";

/// A parameter, and the tensor that holds it.
#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    form: Form,
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Parameter {
    /// Elements with distinct bits, as far as they have enough of these.
    fn new(name: &str, form: Form, dtype: DType, shape: &[usize], seed: u8) -> Self {
        let numel: usize = shape.iter().product();
        let bytes = (0..numel).flat_map(|index| {
            let element = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(seed);
            element.to_le_bytes()[..dtype.size()].to_vec()
        });
        Self {
            name: name.into(),
            form,
            dtype,
            shape: shape.to_vec(),
            bytes: bytes.collect(),
        }
    }

    fn tensor(&self) -> Tensor {
        Tensor::new(&self.name, self.dtype, self.form.stored_shape(&self.shape))
    }

    /// The bytes of the tensor, made otherwise than by the code: columns one after the other, each head sorted anew.
    fn stored(&self) -> Vec<u8> {
        let size = self.dtype.size();
        let (inputs, outputs) = match self.shape[..] {
            [outputs] => (1, outputs),
            [inputs, outputs] => (inputs, outputs),
            _ => return self.bytes.clone(),
        };
        let columns: Vec<usize> = match self.form {
            Form::Same => return self.bytes.clone(),
            Form::Transposed | Form::Stacked => (0..outputs).collect(),
            Form::Rotary { head_dim } => {
                let head = |head: usize| {
                    let pairs = || (0..head_dim).step_by(2).map(move |at| head * head_dim + at);
                    pairs().chain(pairs().map(|at| at + 1))
                };
                (0..outputs / head_dim).flat_map(head).collect()
            }
        };
        let element = |input: usize, output: usize| {
            let at = (input * outputs + output) * size;
            self.bytes[at..at + size].to_vec()
        };
        let row = |output: usize| (0..inputs).flat_map(move |input| element(input, output));
        columns.into_iter().flat_map(row).collect()
    }
}

/// Writes parameters to a folder, with files beside them.
fn save(
    storage: &MemoryStorage,
    parameters: &[Parameter],
    limit: Option<u64>,
    others: &[(&str, &str)],
) -> Result<(), CheckpointError> {
    let tensors = parameters.iter().map(Parameter::tensor).collect();
    let mut writer = FolderWriter::create_on(Arc::new(storage.clone()), DIR, tensors, limit)?;
    for (name, text) in others {
        writer.write_other(name, text.as_bytes())?;
    }
    for index in 0..writer.tensors().len() {
        let name = writer.tensors()[index].name.clone();
        let parameter = parameters.iter().find(|parameter| parameter.name == name);
        let Parameter {
            form, shape, bytes, ..
        } = parameter.unwrap();
        writer.write_parameter(&name, *form, shape, bytes)?;
    }
    writer.commit()
}

fn open(storage: &MemoryStorage) -> Result<Folder, CheckpointError> {
    Folder::open_on(storage, DIR)
}

fn bytes_of(storage: &MemoryStorage, name: &str) -> Vec<u8> {
    let file: Box<dyn ReadFile> = storage.open(&Path::new(DIR).join(name)).unwrap();
    let mut bytes = vec![0; usize::try_from(file.num_bytes()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn names_in(storage: &MemoryStorage) -> Vec<String> {
    let mut names = storage.list(Path::new(DIR)).unwrap();
    names.sort();
    names
}

/// A model of all forms, whose values are those of a seed.
fn model(seed: u8) -> Vec<Parameter> {
    let rotary = Form::Rotary { head_dim: 4 };
    vec![
        Parameter::new("embedding", Form::Same, DType::BF16, &[5, 3], seed),
        Parameter::new("q", rotary, DType::F32, &[3, 8], seed),
        Parameter::new("q.bias", rotary, DType::F32, &[8], seed),
        Parameter::new("up", Form::Transposed, DType::F16, &[6, 5], seed),
        Parameter::new("none", Form::Same, DType::F32, &[0, 2], seed),
        Parameter::new("steps", Form::Same, DType::I64, &[], seed),
    ]
}

/// Asserts that a folder holds just these parameters.
fn assert_is(folder: &Folder, parameters: &[Parameter], text: &str) {
    assert_eq!(folder.tensors().count(), parameters.len(), "{text}");
    for parameter in parameters {
        let shape = &parameter.shape;
        let region = crate::Region::whole(shape).unwrap();
        let mut bytes = vec![0; parameter.bytes.len()];
        let mut request =
            crate::Request::new(&parameter.name, parameter.dtype, shape, region, &mut bytes);
        folder
            .read(parameter.form, &mut request)
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(bytes, parameter.bytes, "{text}: {}", parameter.name);
    }
}
