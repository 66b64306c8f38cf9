//! Folders in the form of Hugging Face: `model.safetensors`, or several files and `model.safetensors.index.json`.
//!
//! A [`Folder`] is read by positioned reads, and just the bytes that a region of a parameter needs. A [`FolderWriter`]
//! leaves an earlier model whole until all of the new one is there. [`Names`] says which parameter is which tensor.
//!
//! ```
//! use burn_dist_checkpoint::hf::{Folder, FolderWriter, Form, Names, Tensor};
//! use burn_dist_checkpoint::{Region, Request};
//! use burn_dist_mesh::DType;
//!
//! let names = Names::parse(r#""layers.*.up.weight" = "model.layers.*.up_proj.weight, transposed""#, &[])?;
//! let (name, form) = names.tensor("layers.3.up.weight").expect("it has a row");
//!
//! // A parameter of 2 inputs and 3 outputs.
//! let (shape, parameter) = ([2, 3], [0, 1, 2, 3, 4, 5]);
//! let directory = tempfile::tempdir()?;
//! let tensors = vec![Tensor::new(&name, DType::U8, form.stored_shape(&shape))];
//! let mut writer = FolderWriter::create(directory.path(), tensors, None)?;
//! writer.write_parameter(&name, form, &shape, &parameter)?;
//! writer.commit()?;
//!
//! // Its last column.
//! let folder = Folder::open(directory.path())?;
//! let column = Region::new(vec![2, 3], vec![0, 2], vec![2, 1])?;
//! let mut bytes = [0; 2];
//! let mut request = Request::new(&name, DType::U8, &shape, column, &mut bytes);
//! assert_eq!(folder.read(form, &mut request)?.read, 2);
//! assert_eq!(bytes, [2, 5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod commit;
mod error;
mod factor;
mod float8;
mod folder;
mod header;
mod names;
mod pattern;
mod shards;
mod tensor;
#[cfg(test)]
mod tests;
mod write;

pub use crate::stored::{Form, NumBytes};
pub use error::FolderProblem;
pub use factor::Factor;
pub use float8::{FLOAT8_BLOCK, Float8};
pub use folder::{Folder, Wanted};
#[cfg(feature = "cli")]
pub(crate) use names::TEXT_BYTES_MAX;
pub use names::{Names, NamesError, NamesProblem};
pub use tensor::Tensor;
pub use write::FolderWriter;

/// The only file of tensors, if one is enough.
pub(crate) const SINGLE: &str = "model.safetensors";
/// Which tensor is in which file, if there are several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
