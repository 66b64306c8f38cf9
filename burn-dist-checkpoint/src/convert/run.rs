//! Converting: the source is opened, and all of it written.

use super::source::Source;
use super::{Conversion, ConvertError, Converted, detect, floats, sink};
use burn_dist_mesh::DType;

impl Conversion<'_> {
    /// Converts.
    ///
    /// Nothing of an interrupted conversion is visible at `to`. A folder gets the files beside the tensors that a
    /// folder has, too.
    ///
    /// # Errors
    /// [`ConvertError`].
    pub fn run(&self) -> Result<Converted, ConvertError> {
        if let Some(dtype) = self.dtype.filter(|dtype| !floats::FLOATS.contains(dtype)) {
            return Err(ConvertError::Floats { dtype });
        }
        let to = detect::of_target(&*self.storage, self.to, self.kind)?;
        let mut source = Source::open(&self.storage, self.from, self.names)?;
        if let Some(module) = self.module {
            source.only(module)?;
        }
        let targets = source.entries.iter().map(|entry| match self.dtype {
            Some(dtype) if entry.dtype.is_float() => dtype,
            _ => entry.dtype,
        });
        let dtypes: Vec<DType> = targets.collect();
        let (parameters, from) = (source.entries.len(), source.kind);
        let sizes = source.entries.iter().zip(&dtypes);
        let bytes = sizes.map(|(entry, dtype)| entry.numel() as u64 * dtype.size() as u64);
        let bytes = bytes.sum();
        let path = sink::write(self, to, &mut source, &dtypes)?;
        Ok(Converted {
            from,
            to,
            path,
            parameters,
            bytes,
        })
    }
}
