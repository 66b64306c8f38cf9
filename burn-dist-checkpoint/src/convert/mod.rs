//! Parameters from one form to another: checkpoints, folders in Hugging Face's form, records of Burn's modules.
//!
//! Memory stays bounded, whatever the size of a tensor.

mod detect;
mod error;
mod floats;
mod kind;
mod merge;
mod run;
mod sink;
mod source;
#[cfg(test)]
mod tests;

pub use error::ConvertError;
pub use floats::convert as convert_floats;
pub use kind::Kind;
pub use merge::Merge;

use crate::hf::Names;
use crate::storage::{Disk, Storage};
use burn_dist_mesh::DType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A conversion: its source, and its target.
///
/// Keys are paths of parameters, and elements are in Burn's order, everywhere but in folders in Hugging Face's form:
/// there, `names` say which tensor holds a parameter, and how.
pub struct Conversion<'a> {
    /// Where it is read from: a directory or a file, of whichever kind its content is.
    pub from: &'a Path,
    /// Where it is written to. Nothing is replaced.
    pub to: &'a Path,
    /// The module of a checkpoint that is converted: what is under `NAME.`, without that. None for all of it.
    pub module: Option<&'a str>,
    /// The kind that is written; none if the name of `to` has it (`.mpk`, `.bpk`).
    pub kind: Option<Kind>,
    /// Names in folders; none if they and the order of elements are kept.
    pub names: Option<&'a Names>,
    /// The type that floats get; none if they keep theirs.
    pub dtype: Option<DType>,
    /// How many bytes of tensors a file of a folder has at most.
    pub shard_bytes: Option<u64>,
    /// Where both are.
    pub storage: Arc<dyn Storage>,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The kind that was found.
    pub from: Kind,
    /// The kind that was written.
    pub to: Kind,
    /// Where: for a checkpoint, its own directory.
    pub path: PathBuf,
    /// How many parameters.
    pub parameters: usize,
    /// Bytes of their elements, as they were written.
    pub bytes: u64,
}

impl<'a> Conversion<'a> {
    /// Describes a conversion on the disk that keeps names and types.
    pub fn new(from: &'a Path, to: &'a Path) -> Self {
        Self {
            from,
            to,
            module: None,
            kind: None,
            names: None,
            dtype: None,
            shard_bytes: None,
            storage: Arc::new(Disk),
        }
    }
}
