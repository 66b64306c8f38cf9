//! A folder that is there, and reading from it.

use super::{FolderProblem, Form, INDEX, NumBytes, SINGLE, header};
use crate::error::{CheckpointError, io_error};
use crate::format::{HEADER_BYTES_MAX, is_file_name, push};
use crate::load::{KeyReport, Match, Request};
use crate::storage::{Disk, Storage};
use crate::stored::Tensors;
use burn_dist_mesh::DType;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A model in the form of Hugging Face: the tensors of its files.
///
/// The header of every file was read and checked when it was opened: tensors lie in their files and share no byte.
pub struct Folder {
    path: PathBuf,
    pub(super) tensors: Tensors,
}

/// A parameter for which a tensor is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The name of the tensor.
    pub name: &'a str,
    /// How it holds the parameter.
    pub form: Form,
    /// The type of its elements; none if any will do, because they are converted.
    pub dtype: Option<DType>,
    /// The shape of the parameter.
    pub shape: &'a [usize],
}

/// Which tensor is in which file.
#[derive(Deserialize)]
pub(super) struct Index {
    pub weight_map: Places,
}

/// An index has no more files.
const FILES_MAX: usize = 100_000;

/// The files of an index, and the tensors with the number of their file.
#[derive(Default)]
pub(super) struct Places {
    pub files: BTreeMap<String, usize>,
    tensors: Vec<(String, usize)>,
}

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Places;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names of files by tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
                let mut places = Places::default();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    let next = places.files.len();
                    let number = *places.files.entry(file).or_insert(next);
                    if number >= FILES_MAX {
                        let error = format_args!("there are more than {FILES_MAX} files");
                        return Err(A::Error::custom(error));
                    }
                    push(&mut places.tensors, (tensor, number));
                }
                places.tensors.sort_unstable();
                let mut pairs = places.tensors.windows(2);
                match pairs.find(|pair| pair[0].0 == pair[1].0) {
                    Some(pair) => {
                        let tensor = &pair[0].0;
                        Err(A::Error::custom(format_args!("{tensor} is there twice")))
                    }
                    None => Ok(places),
                }
            }
        }
        reader.deserialize_map(All)
    }
}

impl Folder {
    /// Opens the model of a folder: `model.safetensors`, or the files of `model.safetensors.index.json` if there is
    /// none. A file may be a symbolic link to one, as in the cache of Hugging Face's library.
    ///
    /// # Errors
    /// [`CheckpointError::NoModel`], [`CheckpointError::Folder`] and [`CheckpointError::Io`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open_on(&Disk, path)
    }

    /// Does what [`Folder::open`] does, on any storage.
    ///
    /// # Errors
    /// Those of [`Folder::open`].
    pub fn open_on(
        storage: &dyn Storage,
        path: impl Into<PathBuf>,
    ) -> Result<Self, CheckpointError> {
        let mut folder = Self::empty(path.into());
        match storage.open_linked(&folder.path.join(SINGLE)) {
            Ok(_) => folder.add(storage, SINGLE)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => folder.add_all(storage)?,
            Err(error) => {
                return Err(io_error("open the file", &folder.path.join(SINGLE))(error));
            }
        }
        Ok(folder)
    }

    /// Opens one file of tensors in a folder, of any name: `adapter_model.safetensors`.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`] and [`CheckpointError::Io`].
    pub fn open_file(path: impl Into<PathBuf>, name: &str) -> Result<Self, CheckpointError> {
        let mut folder = Self::empty(path.into());
        folder.add(&Disk, name)?;
        Ok(folder)
    }

    fn empty(path: PathBuf) -> Self {
        let tensors = Tensors {
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        Self { path, tensors }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of the tensors with their types and shapes, sorted by name. No type: one that is not known.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Option<DType>, &[usize])> {
        let tensors = self.tensors.tensors.iter();
        tensors.map(|(name, stored)| (name.as_str(), stored.dtype, stored.shape.as_slice()))
    }

    /// Returns the type and the shape of a tensor. No type: one that is not known.
    pub fn tensor(&self, name: &str) -> Option<(Option<DType>, &[usize])> {
        let stored = self.tensors.tensors.get(name)?;
        Some((stored.dtype, stored.shape.as_slice()))
    }

    /// Compares what is wanted with what there is. The keys of the report are names of tensors, and shapes are theirs.
    pub fn compare<'a>(&self, wanted: impl IntoIterator<Item = Wanted<'a>>) -> KeyReport {
        self.tensors.compare(wanted.into_iter().map(|wanted| {
            let dtype = wanted.dtype.unwrap_or(DType::F32);
            let any = wanted.dtype.is_none();
            (wanted.name, wanted.form, dtype, wanted.shape, any)
        }))
    }

    /// Compares as [`Folder::compare`] does; differences that matter are an error.
    ///
    /// # Errors
    /// [`CheckpointError::Keys`].
    pub fn check<'a>(
        &self,
        wanted: impl IntoIterator<Item = Wanted<'a>>,
        matching: Match,
    ) -> Result<KeyReport, CheckpointError> {
        let report = self.compare(wanted);
        match report.is_fine(matching) {
            true => Ok(report),
            false => Err(CheckpointError::Keys(Box::new(report))),
        }
    }

    /// Fills the buffer of a request. Its key is the name of the tensor; its shape and region are those of the
    /// parameter that the tensor holds in this form.
    ///
    /// Reads what is needed, and what lies between if that is less than a page. A few megabytes of memory are used
    /// besides the buffer. Any number of threads may read.
    ///
    /// # Errors
    /// [`CheckpointError::Keys`] if the tensor is missing or of another shape or type, [`CheckpointError::Form`],
    /// [`CheckpointError::Grid`], [`CheckpointError::Bytes`], [`CheckpointError::DType`],
    /// [`CheckpointError::UnknownDType`] and [`CheckpointError::Io`], also if the file was cut meanwhile.
    pub fn read(&self, form: Form, request: &mut Request<'_>) -> Result<NumBytes, CheckpointError> {
        self.tensors.read(form, request)
    }

    pub(crate) fn into_tensors(self) -> Tensors {
        self.tensors
    }

    /// Returns what the file of a tensor calls the type of its elements.
    pub(crate) fn dtype_name(&self, name: &str) -> &str {
        let stored = self.tensors.tensors.get(name);
        stored.map_or("", |stored| &stored.dtype_name)
    }

    /// Adds the tensors of every file of the index.
    fn add_all(&mut self, storage: &dyn Storage) -> Result<(), CheckpointError> {
        let path = self.path.join(INDEX);
        let index = read_index(storage, &path)?;
        let Some(index) = index else {
            let path = self.path.clone();
            return Err(CheckpointError::NoModel { path });
        };
        let problem = |problem| {
            let path = path.clone();
            Err(CheckpointError::Folder { path, problem })
        };
        let Places { files, tensors } = index.weight_map;
        if let Some(name) = files.keys().find(|name| !is_file_name(name)) {
            let name = name.clone();
            return problem(FolderProblem::FileName { name });
        }
        // The number in the index of each file that is added.
        let mut numbers = Vec::with_capacity(files.len());
        for (name, number) in &files {
            self.add(storage, name)?;
            numbers.push(*number);
        }
        for (tensor, number) in tensors {
            let stored = self.tensors.tensors.get(&tensor);
            if stored.is_none_or(|stored| numbers[stored.file] != number) {
                let mut files = files.into_iter();
                let file = files.find(|(_, own)| *own == number);
                let file = file.map(|(name, _)| name).unwrap_or_default();
                return problem(FolderProblem::Absent { tensor, file });
            }
        }
        Ok(())
    }

    /// Adds the tensors of one file.
    fn add(&mut self, storage: &dyn Storage, name: &str) -> Result<(), CheckpointError> {
        let path = self.path.join(name);
        let file = storage.open_linked(&path);
        let file = file.map_err(io_error("open the file", &path))?;
        let index = self.tensors.files.len();
        let tensors = header::read(&*file, &path, index)?;
        if self.tensors.tensors.is_empty() {
            // Made at once, a map has no room to spare. No name is there twice in one header.
            self.tensors.tensors = tensors.into_iter().collect();
            self.tensors.files.push((path, file));
            return Ok(());
        }
        for (tensor, stored) in tensors {
            if let Some(other) = self.tensors.tensors.get(&tensor) {
                let (other, _) = &self.tensors.files[other.file];
                let other = other.display().to_string();
                let problem = FolderProblem::Duplicate { tensor, other };
                return Err(CheckpointError::Folder { path, problem });
            }
            self.tensors.tensors.insert(tensor, stored);
        }
        self.tensors.files.push((path, file));
        Ok(())
    }
}

/// Reads an index, if there is one.
pub(super) fn read_index(
    storage: &dyn Storage,
    path: &Path,
) -> Result<Option<Index>, CheckpointError> {
    let file = match storage.open_linked(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(io_error("open the file", path))?,
    };
    let problem = |problem| {
        let path = path.to_path_buf();
        CheckpointError::Folder { path, problem }
    };
    let bytes = file.num_bytes();
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    if length > HEADER_BYTES_MAX {
        let max = HEADER_BYTES_MAX;
        return Err(problem(FolderProblem::TooLarge { bytes, max }));
    }
    let mut json = vec![0; length];
    let read = file.read_at(&mut json, 0);
    read.map_err(io_error("read the file", path))?;
    let index = serde_json::from_slice(&json);
    index.map(Some).map_err(|error| problem(error.into()))
}
