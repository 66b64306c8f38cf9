//! Requests: some elements of a tensor, and the buffer they go to.

use crate::error::CheckpointError;
use crate::region::Region;
use burn_dist_mesh::DType;

/// Turns elements of the type in the file into as many of the type that is asked for.
pub type Convert<'a> = dyn Fn(&[u8], &mut [u8]) + Sync + 'a;

/// Some elements of a tensor, row-major, and the buffer they go to.
pub struct Request<'a> {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) region: Region,
    pub(crate) target: &'a mut [u8],
    pub(crate) convert: Option<&'a Convert<'a>>,
}

impl<'a> Request<'a> {
    /// Asks for the elements of `region` of a tensor of this type and global shape.
    pub fn new(
        key: impl Into<String>,
        dtype: DType,
        shape: &[usize],
        region: Region,
        target: &'a mut [u8],
    ) -> Self {
        Self {
            key: key.into(),
            dtype,
            shape: shape.to_vec(),
            region,
            target,
            convert: None,
        }
    }

    /// Has `convert` make elements of the type that is asked for out of those of the file, wherever the types differ.
    ///
    /// It is called with whole elements, as many in as out, many times.
    pub fn converted(mut self, convert: &'a Convert<'a>) -> Self {
        self.convert = Some(convert);
        self
    }

    /// Checks the region and the buffer, once it is known that shape and type fit.
    pub(crate) fn check(&self, shape: &[usize]) -> Result<(), CheckpointError> {
        let key = || self.key.clone();
        let expected: usize = shape.iter().product();
        let found: usize = self.region.grid().iter().product();
        if expected != found {
            return Err(CheckpointError::Grid {
                key: key(),
                expected,
                found,
            });
        }
        if self.dtype.size() == 0 {
            let dtype = self.dtype;
            return Err(CheckpointError::DType { key: key(), dtype });
        }
        let bytes = self.region.numel().saturating_mul(self.dtype.size());
        match self.target.len() == bytes {
            true => Ok(()),
            false => Err(CheckpointError::Bytes {
                key: key(),
                expected: bytes,
                found: self.target.len(),
            }),
        }
    }
}
