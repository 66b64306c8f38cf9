//! The trait of a model whose sizes and weights a folder may have.

use std::path::Path;

use super::error::FolderError;
use crate::checkpoint::hf::Names;
use crate::trainer::model::Model;

/// A model whose sizes and weights a folder may have.
pub trait InFolders: Model {
    /// The tensor that such a folder leaves out if another one takes its place, for models that have one.
    const TIED: Option<Tied> = None;

    /// Reads the sizes: `config.json`.
    ///
    /// # Errors
    /// [`FolderError`].
    fn read_config(folder: &Path) -> Result<Self::Config, FolderError>;

    /// Returns which tensor is which parameter.
    fn names(config: &Self::Config) -> Names;

    /// Returns whether the one tensor of [`Self::TIED`] takes the place of the other.
    fn is_tied(_config: &Self::Config) -> bool {
        false
    }
}

/// A tensor that may be the same as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tied {
    /// The name of the tensor that is left out.
    pub name: &'static str,
    /// The name of the tensor that takes its place.
    pub of: &'static str,
    /// The field of `config.json` that says so.
    pub field: &'static str,
}
