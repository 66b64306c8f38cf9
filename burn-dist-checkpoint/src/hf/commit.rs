//! From files that are complete to a model that is there.
//!
//! ```text
//! *.partial                                every file first, synced; then the folder
//! config.json, ...                         take their names, in place of earlier ones
//! model-00001-of-00002.safetensors, ...    take theirs, which no earlier file has; the folder is synced
//! model.safetensors.index.json             takes its name: the new model is there; the folder is synced
//! files of an earlier model                are removed
//! ```
//!
//! A folder with `model.safetensors` is read without its index. So one file takes its name instead of the index, which
//! then is removed; and where several files follow one, its removal is what makes the new model visible.

use super::folder::read_index;
use super::shards::PARTIAL;
use super::{FolderProblem, FolderWriter, INDEX, SINGLE, shards};
use crate::error::{CheckpointError, io_error};
use crate::format::is_file_name;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

impl FolderWriter {
    /// Makes the model visible, and removes the files of an earlier one.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] with [`FolderProblem::Incomplete`] if bytes are missing, and
    /// [`CheckpointError::Io`]. If it comes after the last file has taken its name, the new model is there.
    pub fn commit(mut self) -> Result<(), CheckpointError> {
        if let Some(tensor) = self.tensors.get(self.position) {
            let (tensor, missing) = (tensor.name.clone(), self.left);
            return Err(self.problem(SINGLE, FolderProblem::Incomplete { tensor, missing }));
        }
        let superfluous = match self.is_model {
            true => self.superfluous(),
            false => Vec::new(),
        };
        let last = match self.files.as_slice() {
            [(only, _)] => only.clone(),
            _ => self.write_index()?.to_owned(),
        };
        self.sync_dir()?;
        for name in std::mem::take(&mut self.others) {
            self.take_name(&name)?;
            self.rubbish.retain(|other| *other != name);
        }
        for (name, _) in self.files.clone() {
            if name != last {
                self.take_name(&name)?;
            }
        }
        self.sync_dir()?;
        // Whatever a failed rename has done: what it may have made visible stays.
        self.rubbish.clear();
        self.take_name(&last)?;
        self.sync_dir()?;
        // What of an earlier model would be read instead, or with it, goes first.
        for name in [SINGLE, INDEX] {
            if self.is_model && name != last && self.found.contains(name) {
                self.remove(name)?;
                self.sync_dir()?;
            }
        }
        for name in &superfluous {
            self.remove(name)?;
        }
        match superfluous.is_empty() {
            true => Ok(()),
            false => self.sync_dir(),
        }
    }

    /// Writes the index; returns its name.
    fn write_index(&mut self) -> Result<&'static str, CheckpointError> {
        let total: u64 = self.sizes.iter().sum();
        let mut places = BTreeMap::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let file = self.files.iter().rev().find(|(_, first)| *first <= index);
            places.insert(&tensor.name, file.map(|(name, _)| name));
        }
        let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": places});
        let text = format!("{index:#}\n");
        let mut file = self.create_partial(INDEX)?;
        let written = file.append(text.as_bytes()).and_then(|()| file.sync());
        written.map_err(io_error("write the file", &self.path.join(INDEX)))?;
        Ok(INDEX)
    }

    /// Returns the files that are not needed once the new model is there.
    fn superfluous(&self) -> Vec<String> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        if let Ok(Some(index)) = read_index(&*self.storage, &self.path.join(INDEX)) {
            let files = index.weight_map.files.into_keys();
            names.extend(files.filter(|name| is_file_name(name)));
        }
        let is_left = |name: &&String| match name.strip_suffix(PARTIAL) {
            Some(name) => shards::is_shard(name) || name == SINGLE || name == INDEX,
            None => shards::is_shard(name),
        };
        names.extend(self.found.iter().filter(is_left).cloned());
        let is_kept = |name: &String| {
            self.files.iter().any(|(own, _)| own == name)
                || self.rubbish.contains(name)
                || name == SINGLE
                || !self.found.contains(name)
        };
        names.into_iter().filter(|name| !is_kept(name)).collect()
    }

    /// Gives a file its name, in place of one that has it.
    fn take_name(&mut self, name: &str) -> Result<(), CheckpointError> {
        let partial = format!("{name}{PARTIAL}");
        let (from, to) = (self.path.join(&partial), self.path.join(name));
        let renamed = self.storage.replace(&from, &to);
        renamed.map_err(io_error("rename the file", &from))?;
        for other in &mut self.rubbish {
            if *other == partial {
                *other = name.to_owned();
            }
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), CheckpointError> {
        let synced = self.storage.sync_dir(&self.path);
        synced.map_err(io_error("sync the directory", &self.path))
    }
}

/// An unfinished folder is removed, as far as the file system allows.
impl Drop for FolderWriter {
    fn drop(&mut self) {
        self.file = None;
        for name in &self.rubbish {
            if let Err(error) = self.remove(name) {
                let path: &Path = &self.path;
                tracing::warn!(path = %path.display(), name, %error, "a file that was given up cannot be removed");
            }
        }
    }
}
