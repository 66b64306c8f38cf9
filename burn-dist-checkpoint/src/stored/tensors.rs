//! Tensors by name, and the files that they lie in.

use super::Form;
use super::pieces;
use super::read::Batch;
use crate::error::CheckpointError;
use crate::load::{Found, KeyReport, Request};
use crate::region::RegionError;
use crate::storage::ReadFile;
use burn_dist_mesh::DType;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A tensor that lies whole in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Index of the file, and the first byte there.
    pub file: usize,
    pub offset: u64,
    /// The type of its elements; none if it is one that there is not here.
    pub dtype: Option<DType>,
    /// The name of that in the file.
    pub dtype_name: String,
    pub shape: Vec<usize>,
}

impl Stored {
    fn found(&self) -> Found<'_> {
        Found {
            shape: &self.shape,
            dtype: self.dtype,
            dtype_name: &self.dtype_name,
        }
    }
}

/// Bytes of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumBytes {
    /// Bytes of the elements that were asked for, as they are in the files.
    pub needed: u64,
    /// Bytes that were read for them.
    pub read: u64,
}

/// Tensors by name, and the files that they lie in.
pub(crate) struct Tensors {
    pub files: Vec<(PathBuf, Box<dyn ReadFile>)>,
    /// Every tensor lies in its file.
    pub tensors: BTreeMap<String, Stored>,
}

/// The failures while the region of a parameter is taken apart.
enum Failure {
    Region(RegionError),
    Read(CheckpointError),
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        Self::Region(error)
    }
}

impl Tensors {
    /// Compares what is wanted (name, form, type, shape of the parameter, whether any type will do) with what there is.
    pub(crate) fn compare<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, Form, DType, &'a [usize], bool)>,
    ) -> KeyReport {
        let wanted = wanted
            .into_iter()
            .map(|(name, form, dtype, shape, any)| (name, dtype, form.stored_shape(shape), any));
        let find = |name: &str| Some(self.tensors.get(name)?.found());
        KeyReport::between(wanted, find, self.tensors.keys().map(String::as_str))
    }

    /// Fills the buffer of a request for elements of a parameter that a tensor holds in this form, or several do.
    pub(crate) fn read(
        &self,
        form: Form,
        request: &mut Request<'_>,
    ) -> Result<NumBytes, CheckpointError> {
        if form == Form::Stacked {
            return self.read_stacked(request);
        }
        let stored = self.tensors.get(&request.key);
        self.read_as(form, request, stored.and_then(|stored| stored.dtype))
    }

    /// Reads as [`Tensors::read`] does, of a tensor for each matrix of the parameter.
    fn read_stacked(&self, request: &mut Request<'_>) -> Result<NumBytes, CheckpointError> {
        let form = Form::Stacked;
        if !form.fits(&request.shape) {
            let (key, shape) = (request.key.clone(), request.shape.clone());
            return Err(CheckpointError::Form { key, form, shape });
        }
        request.check(&request.shape)?;
        let members = form.members(&request.key, &request.shape);
        let each = request.shape.iter().skip(1).product();
        let parts = request.region.by_parts(members.len(), each);
        let parts = parts.map_err(|source| {
            let key = request.key.clone();
            CheckpointError::Region { key, source }
        })?;
        let (dtype, convert) = (request.dtype, request.convert);
        let (mut all, mut rest) = (NumBytes::default(), &mut *request.target);
        for (number, region) in parts {
            let bytes = region.numel() * dtype.size();
            let (target, others) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = others;
            let (name, form, shape) = &members[number];
            let mut part = Request {
                convert,
                ..Request::new(name, dtype, shape, region, target)
            };
            let read = self.read(*form, &mut part)?;
            all.needed += read.needed;
            all.read += read.read;
        }
        Ok(all)
    }

    /// Reads as [`Tensors::read`] does, as if the elements had this type.
    pub(crate) fn read_as(
        &self,
        form: Form,
        request: &mut Request<'_>,
        found: Option<DType>,
    ) -> Result<NumBytes, CheckpointError> {
        let key = || request.key.clone();
        if !form.fits(&request.shape) {
            let (key, shape) = (key(), request.shape.clone());
            return Err(CheckpointError::Form { key, form, shape });
        }
        let wanted = (
            request.key.as_str(),
            request.dtype,
            form.stored_shape(&request.shape),
            request.convert.is_some(),
        );
        let find = |name: &str| {
            let dtype = found;
            let stored = self.tensors.get(name)?;
            Some(Found {
                dtype,
                ..stored.found()
            })
        };
        let report = KeyReport::between([wanted], find, std::iter::empty());
        let Some(stored) = self.tensors.get(&request.key).filter(|_| report.is_empty()) else {
            return Err(CheckpointError::Keys(Box::new(report)));
        };
        request.check(&request.shape)?;
        let Some(found) = found else {
            let (key, found) = (key(), stored.dtype_name.clone());
            return Err(CheckpointError::UnknownDType { key, found });
        };
        let (path, file) = &self.files[stored.file];
        let mut batch = Batch::new(
            (&**file, path),
            (stored.offset, found.size()),
            (&mut *request.target, request.dtype.size()),
            request.convert.filter(|_| found != request.dtype),
        );
        let mut each = |piece| batch.add(piece).map_err(Failure::Read);
        let read = pieces::for_each(form, &request.shape, &request.region, &mut each);
        read.map_err(|failure| match failure {
            Failure::Region(source) => CheckpointError::Region {
                key: request.key.clone(),
                source,
            },
            Failure::Read(error) => error,
        })?;
        batch.finish()?;
        Ok(NumBytes {
            needed: (request.region.numel() * found.size()) as u64,
            read: batch.bytes_read,
        })
    }
}
