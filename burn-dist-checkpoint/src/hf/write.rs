//! Writing a folder: its tensors one after the other, and the files beside them.

use super::header::FLOAT8;
use super::shards::PARTIAL;
use super::tensor::{Tensor, check_names, num_bytes};
use super::{FolderProblem, Form, SINGLE, shards};
use crate::error::{CheckpointError, io_error};
use crate::format::{Header, safetensors_name};
use crate::storage::{Disk, Storage, WriteFile};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Shorter writes are collected.
const BUFFER_BYTES: usize = if cfg!(test) { 32 } else { 1 << 18 };
/// A parameter is turned by so many bytes.
const BLOCK_BYTES: usize = if cfg!(test) { 32 } else { 4 << 20 };

/// A model that is being written to a folder. Dropped before its commit, it leaves nothing of it.
///
/// An earlier model there is whole until the new one is. Files beside the tensors take their names just before: where
/// these differ from those of the earlier model, a crash at that moment leaves the new ones beside the earlier tensors.
pub struct FolderWriter {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) path: PathBuf,
    /// In the order of the files, and their bytes.
    pub(super) tensors: Vec<Tensor>,
    pub(super) sizes: Vec<u64>,
    /// Name of each file, and the index of its first tensor.
    pub(super) files: Vec<(String, usize)>,
    /// True if they are the files of a model, which take the place of those of an earlier one.
    pub(super) is_model: bool,
    /// Files that were there before.
    pub(super) found: BTreeSet<String>,
    /// The files beside the tensors.
    pub(super) others: Vec<String>,
    /// The files that are removed if the model is not finished.
    pub(super) rubbish: Vec<String>,
    /// The tensor that is written next, and how many bytes of it are left.
    pub(super) position: usize,
    pub(super) left: u64,
    /// The file that is being written, its path, and what is yet to be appended to it.
    pub(super) file: Option<Box<dyn WriteFile>>,
    pub(super) file_path: PathBuf,
    pub(super) buffer: Vec<u8>,
}

/// The names of the files of tensors.
#[derive(Clone, Copy)]
enum Naming<'a> {
    /// The names of a model, in files of up to so many bytes.
    Model(Option<u64>),
    /// One file of this name.
    Own(&'a str),
}

impl FolderWriter {
    /// Begins a model of these tensors, in files of up to `limit` bytes of them; in one file without a limit. The
    /// folder is made if there is none.
    ///
    /// # Errors
    /// [`CheckpointError::DuplicateKey`], [`CheckpointError::Key`], [`CheckpointError::DType`] and
    /// [`CheckpointError::Region`] for tensors that cannot be written; [`CheckpointError::Folder`] if there are too
    /// many for one file; [`CheckpointError::Io`].
    pub fn create(
        path: impl Into<PathBuf>,
        tensors: Vec<Tensor>,
        limit: Option<u64>,
    ) -> Result<Self, CheckpointError> {
        Self::create_on(Arc::new(Disk), path, tensors, limit)
    }

    /// Begins one file of tensors of another name than a model has: `adapter_model.safetensors`. A model in the same
    /// folder stays.
    ///
    /// # Errors
    /// Those of [`FolderWriter::create`], and [`CheckpointError::Folder`] with [`FolderProblem::OtherName`] if the name
    /// is one of a model's.
    pub fn create_file(
        path: impl Into<PathBuf>,
        name: &str,
        tensors: Vec<Tensor>,
    ) -> Result<Self, CheckpointError> {
        let path = path.into();
        if !shards::is_other_name(name) {
            let path = path.join(name);
            let problem = FolderProblem::OtherName { name: name.into() };
            return Err(CheckpointError::Folder { path, problem });
        }
        Self::begin(Arc::new(Disk), path, tensors, Naming::Own(name))
    }

    /// Does what [`FolderWriter::create`] does, on any storage.
    ///
    /// # Errors
    /// Those of [`FolderWriter::create`].
    pub fn create_on(
        storage: Arc<dyn Storage>,
        path: impl Into<PathBuf>,
        tensors: Vec<Tensor>,
        limit: Option<u64>,
    ) -> Result<Self, CheckpointError> {
        Self::begin(storage, path.into(), tensors, Naming::Model(limit))
    }

    fn begin(
        storage: Arc<dyn Storage>,
        path: PathBuf,
        mut tensors: Vec<Tensor>,
        naming: Naming<'_>,
    ) -> Result<Self, CheckpointError> {
        // Large elements first: every tensor is aligned to its elements.
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
        let sizes: Result<Vec<u64>, _> = tensors.iter().map(num_bytes).collect();
        let sizes = sizes?;
        check_names(&tensors)?;
        let made = storage.create_dir(&path);
        made.map_err(io_error("create the directory", &path))?;
        let found = storage.list(&path);
        let found = found.map_err(io_error("list the directory", &path))?;
        let found = BTreeSet::from_iter(found);
        let (counts, names) = match naming {
            Naming::Model(limit) => {
                let counts = shards::split(sizes.iter().copied(), limit);
                let names = shards::names(counts.len(), &found);
                (counts, names)
            }
            Naming::Own(name) => (vec![tensors.len()], vec![name.to_owned()]),
        };
        let mut first = 0;
        let files = names.into_iter().zip(counts);
        let files = files.map(|(name, count)| {
            let start = first;
            first += count;
            (name, start)
        });
        let mut writer = Self {
            files: files.collect(),
            is_model: matches!(naming, Naming::Model(_)),
            left: 0,
            position: 0,
            storage,
            path,
            tensors,
            sizes,
            found,
            others: Vec::new(),
            rubbish: Vec::new(),
            file: None,
            file_path: PathBuf::new(),
            buffer: Vec::new(),
        };
        writer.begin_tensor()?;
        Ok(writer)
    }

    /// Returns the tensors in the order in which they are written.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Appends bytes to a tensor, in its form. Tensors come one after the other, each in as many calls as one likes.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] with [`FolderProblem::Order`], [`CheckpointError::Bytes`] and
    /// [`CheckpointError::Io`], also of a full disk. After an error the model cannot be finished.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let next = self.tensors.get(self.position);
        if next.is_none_or(|next| next.name != name) {
            let expected = next.map_or("nothing", |next| &next.name).to_owned();
            let found = name.to_owned();
            return Err(self.problem(SINGLE, FolderProblem::Order { expected, found }));
        }
        let given = bytes.len() as u64;
        if given > self.left {
            let size = self.sizes[self.position];
            return Err(CheckpointError::Bytes {
                key: name.to_owned(),
                expected: usize::try_from(size).unwrap_or(usize::MAX),
                found: usize::try_from(size - self.left + given).unwrap_or(usize::MAX),
            });
        }
        self.append(bytes)?;
        self.left -= given;
        if self.left == 0 {
            self.position += 1;
            self.begin_tensor()?;
        }
        Ok(())
    }

    /// Writes the tensor that holds a parameter of this shape: `bytes` are all of its elements.
    ///
    /// # Errors
    /// [`CheckpointError::Form`], [`CheckpointError::Bytes`] and those of [`FolderWriter::write`].
    pub fn write_parameter(
        &mut self,
        name: &str,
        form: Form,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        let size = tensor.map_or(1, |tensor| tensor.dtype.size());
        let is_shape = tensor.is_none_or(|tensor| tensor.shape == form.stored_shape(shape));
        let key = || name.to_owned();
        if !form.fits(shape) || !is_shape {
            let shape = shape.to_vec();
            return Err(CheckpointError::Form {
                key: key(),
                form,
                shape,
            });
        }
        let expected = shape.iter().product::<usize>() * size;
        if tensor.is_some() && bytes.len() != expected {
            return Err(CheckpointError::Bytes {
                key: key(),
                expected,
                found: bytes.len(),
            });
        }
        let Some((inputs, outputs)) = form.matrix(shape).filter(|_| tensor.is_some()) else {
            return self.write(name, bytes);
        };
        let row = (inputs * size).max(1);
        let step = (BLOCK_BYTES / row)
            .next_multiple_of(form.step())
            .max(form.step());
        let mut rows = vec![0; step.min(outputs) * row];
        for start in (0..outputs).step_by(step) {
            let columns = start..outputs.min(start + step);
            let rows = &mut rows[..columns.len() * inputs * size];
            form.pack((inputs, outputs), columns, size, bytes, rows);
            self.write(name, rows)?;
        }
        Ok(())
    }

    /// Writes a file beside the tensors: `config.json`, those of the tokenizer. One that is there with the same bytes
    /// is left as it is.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] with [`FolderProblem::OtherName`], and [`CheckpointError::Io`].
    pub fn write_other(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        if !shards::is_other_name(name) || self.others.iter().any(|other| other == name) {
            let problem = FolderProblem::OtherName { name: name.into() };
            return Err(self.problem(name, problem));
        }
        if self.is_same(name, bytes) {
            return self.remove_partial(name).map(drop);
        }
        let mut file = self.create_partial(name)?;
        let written = file.append(bytes).and_then(|()| file.sync());
        written.map_err(io_error("write the file", &self.path.join(name)))?;
        self.others.push(name.to_owned());
        Ok(())
    }

    /// Goes on to the next tensor that has bytes, and to its file.
    fn begin_tensor(&mut self) -> Result<(), CheckpointError> {
        loop {
            let first = |(_, first): &(String, usize)| *first == self.position;
            let begun = self.files.iter().position(first);
            let is_end = self.position == self.tensors.len();
            // An empty model has one file, which begins where the tensors end.
            if (begun.is_some() || is_end) && self.file.is_some() {
                self.end_file()?;
            }
            if let Some(index) = begun {
                self.begin_file(index)?;
            }
            if is_end {
                return match self.file.is_some() {
                    true => self.end_file(),
                    false => Ok(()),
                };
            }
            self.left = self.sizes[self.position];
            if self.left > 0 {
                return Ok(());
            }
            self.position += 1;
        }
    }

    fn begin_file(&mut self, index: usize) -> Result<(), CheckpointError> {
        let (name, first) = self.files[index].clone();
        let last = self.files.get(index + 1);
        let range = first..last.map_or(self.tensors.len(), |(_, next)| *next);
        let entries = self.tensors[range.clone()].iter().zip(&self.sizes[range]);
        let entries = entries.map(|(tensor, bytes)| {
            let dtype = match tensor.float8 {
                true => FLOAT8,
                false => safetensors_name(tensor.dtype).unwrap_or("U8"),
            };
            (tensor.name.as_str(), dtype, tensor.shape.clone(), *bytes)
        });
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let header = Header::to_bytes(&metadata, entries);
        let header = header.map_err(|error| self.problem(&name, error.into()))?;
        self.file = Some(self.create_partial(&name)?);
        self.file_path = self.path.join(&name);
        self.append(&header)
    }

    fn end_file(&mut self) -> Result<(), CheckpointError> {
        self.flush()?;
        let synced = self.file.take().map_or(Ok(()), |mut file| file.sync());
        synced.map_err(io_error("sync the file", &self.file_path))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if self.buffer.len() + bytes.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.flush()?;
        let appended = self.file.as_mut().map_or(Ok(()), |file| file.append(bytes));
        appended.map_err(io_error("write the file", &self.file_path))
    }

    fn flush(&mut self) -> Result<(), CheckpointError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let file = self.file.as_mut();
        let appended = file.map_or(Ok(()), |file| file.append(&self.buffer));
        self.buffer.clear();
        appended.map_err(io_error("write the file", &self.file_path))
    }

    pub(super) fn create_partial(
        &mut self,
        name: &str,
    ) -> Result<Box<dyn WriteFile>, CheckpointError> {
        let partial = self.remove_partial(name)?;
        let path = self.path.join(&partial);
        let file = self.storage.create(&path);
        let file = file.map_err(io_error("create the file", &path))?;
        self.rubbish.push(partial);
        Ok(file)
    }

    /// Removes what an interrupted save has left; returns the name of the partial file.
    fn remove_partial(&mut self, name: &str) -> Result<String, CheckpointError> {
        let partial = format!("{name}{PARTIAL}");
        if self.found.remove(&partial) {
            self.remove(&partial)?;
        }
        Ok(partial)
    }

    /// Returns whether a file of this name has these bytes.
    fn is_same(&self, name: &str, bytes: &[u8]) -> bool {
        let Some(file) = self.found.get(name).map(|name| self.path.join(name)) else {
            return false;
        };
        let Ok(file) = self.storage.open_linked(&file) else {
            return false;
        };
        let mut found = vec![0; bytes.len()];
        file.num_bytes() == bytes.len() as u64
            && file.read_at(&mut found, 0).is_ok()
            && found == bytes
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), CheckpointError> {
        let path = self.path.join(name);
        match self.storage.remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(io_error("remove the file", &path)),
        }
    }

    pub(super) fn problem(&self, name: &str, problem: FolderProblem) -> CheckpointError {
        let path = self.path.join(name);
        CheckpointError::Folder { path, problem }
    }
}
