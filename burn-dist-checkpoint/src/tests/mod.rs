//! Tests that take several folders, and the worlds they run in.

use crate::storage::Storage;
use std::path::Path;

mod crash;
mod fuzz;
pub(crate) mod state;
pub(crate) mod worlds;

pub(crate) fn names(storage: &dyn Storage, directory: &str) -> Vec<String> {
    let mut names = storage.list(Path::new(directory)).unwrap();
    names.sort();
    names
}
