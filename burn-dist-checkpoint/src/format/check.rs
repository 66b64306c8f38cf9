//! Demands on the numbers of a manifest, which must hold before anything is read by them.

use super::overlap::{Tangled, overlapping};
use super::{
    BLOCK_BYTES_MAX, DIMS_MAX, HEADER_BYTES_MAX, Manifest, ManifestError, PREFIX_BYTES, PieceEntry,
    TensorEntry, is_key,
};
use crate::region::Region;
use std::path::{Component, Path};

/// Where a piece lies: file, first byte, the byte after the last, and its tensor.
type PieceAt = (usize, u64, u64, usize);

impl Manifest {
    /// Checks that every number makes sense, and that the pieces make up the tensors.
    ///
    /// # Errors
    /// The first that is found.
    pub fn check(&self) -> Result<(), ManifestError> {
        let is_whole = self.block_bytes.is_multiple_of(8);
        if !is_whole || !(8..=BLOCK_BYTES_MAX).contains(&self.block_bytes) {
            return Err(ManifestError::BlockBytes {
                found: self.block_bytes,
                max: BLOCK_BYTES_MAX,
            });
        }
        self.check_files()?;
        let num_pieces = self.tensors.iter().map(|tensor| tensor.pieces.len());
        let mut places: Vec<PieceAt> = Vec::with_capacity(num_pieces.sum());
        let (mut last, mut total) = ("", 0u64);
        for (index, tensor) in self.tensors.iter().enumerate() {
            let key = tensor.key.as_str();
            if !is_key(key) {
                return Err(ManifestError::Key { key: key.into() });
            }
            if index > 0 && last >= key {
                return Err(ManifestError::KeyOrder { key: key.into() });
            }
            last = key;
            let bytes = self.check_tensor(tensor, index, &mut places)?;
            total = total.checked_add(bytes).ok_or(ManifestError::TooLarge)?;
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            let ((file, _, end, _), (next_file, start, _, tensor)) = (pair[0], pair[1]);
            if file == next_file && start < end {
                return Err(ManifestError::SharedBytes {
                    file: self.files[file].name.clone(),
                    offset: start,
                    key: self.tensors[tensor].key.clone(),
                });
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), ManifestError> {
        let mut names: Vec<&str> = Vec::with_capacity(self.files.len());
        for file in &self.files {
            let name = file.name.as_str();
            if !is_file_name(name) {
                return Err(ManifestError::FileName { name: name.into() });
            }
            // Nobody has to make room for more.
            let max = (PREFIX_BYTES + HEADER_BYTES_MAX) as u64;
            if file.header_bytes > file.bytes.min(max) {
                return Err(ManifestError::FileBytes {
                    name: name.into(),
                    header_bytes: file.header_bytes,
                    bytes: file.bytes,
                });
            }
            names.push(name);
        }
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ManifestError::DuplicateFile {
                name: pair[0].into(),
            }),
            None => Ok(()),
        }
    }

    /// Checks one tensor; returns its bytes.
    fn check_tensor(
        &self,
        tensor: &TensorEntry,
        index: usize,
        places: &mut Vec<PieceAt>,
    ) -> Result<u64, ManifestError> {
        let key = || tensor.key.clone();
        let dtype = tensor.dtype().ok_or_else(|| ManifestError::DType {
            key: key(),
            dtype: tensor.dtype.clone(),
        })?;
        let region_error = |source| ManifestError::Region { key: key(), source };
        let dims = tensor.grid().len().max(tensor.shape.len());
        if dims > DIMS_MAX {
            return Err(ManifestError::TooManyDims {
                key: key(),
                dims,
                max: DIMS_MAX,
            });
        }
        // Counts the elements, too.
        let whole = Region::whole(&tensor.shape).map_err(region_error)?;
        if let Some(factors) = &tensor.factors
            && !is_made_of(&tensor.shape, factors)
        {
            return Err(ManifestError::Factors {
                key: key(),
                factors: factors.clone(),
                shape: tensor.shape.clone(),
            });
        }
        let mut found = 0usize;
        for piece in &tensor.pieces {
            let region = tensor.region(piece).map_err(region_error)?;
            let bytes = self.check_piece(tensor, piece, &region, dtype.size() as u64)?;
            places.push((piece.file, piece.offset, piece.offset + bytes, index));
            found = found.saturating_add(region.numel());
        }
        let overlap = overlapping(&tensor.grid(), &tensor.pieces);
        let overlap = overlap.map_err(|Tangled| ManifestError::Tangled {
            key: key(),
            pieces: tensor.pieces.len(),
        })?;
        if let Some((first, second)) = overlap {
            return Err(ManifestError::Overlap {
                key: key(),
                first: Box::new(tensor.region(first).map_err(region_error)?),
                second: Box::new(tensor.region(second).map_err(region_error)?),
            });
        }
        if found != whole.numel() {
            return Err(ManifestError::Incomplete {
                key: key(),
                expected: whole.numel(),
                found,
            });
        }
        let bytes = (found as u64).checked_mul(dtype.size() as u64);
        bytes.ok_or(ManifestError::TooLarge)
    }

    /// Checks one piece; returns its bytes.
    fn check_piece(
        &self,
        tensor: &TensorEntry,
        piece: &PieceEntry,
        region: &Region,
        element_bytes: u64,
    ) -> Result<u64, ManifestError> {
        let (key, region_of) = (|| tensor.key.clone(), || region.clone());
        if region.numel() == 0 {
            return Err(ManifestError::Empty {
                key: key(),
                region: region_of(),
            });
        }
        let bytes = (region.numel() as u64).saturating_mul(element_bytes);
        let end = piece.offset.checked_add(bytes);
        let is_inside = self.files.get(piece.file).is_some_and(|file| {
            piece.offset >= file.header_bytes && end.is_some_and(|end| end <= file.bytes)
        });
        if !is_inside {
            return Err(ManifestError::Outside {
                key: key(),
                region: region_of(),
                file: piece.file,
                offset: piece.offset,
                bytes,
            });
        }
        let blocks = bytes.div_ceil(self.block_bytes as u64);
        if blocks != piece.checksums.len() as u64 {
            return Err(ManifestError::Blocks {
                key: key(),
                region: region_of(),
                expected: blocks,
                found: piece.checksums.len(),
            });
        }
        Ok(bytes)
    }
}

/// Returns whether `name` is the plain name of a safetensors file, on every system.
pub(crate) fn is_file_name(name: &str) -> bool {
    let is_bad = |c: char| matches!(c, '/' | '\\' | ':') || c.is_control();
    let mut components = Path::new(name).components();
    let is_one = matches!(components.next(), Some(Component::Normal(_)));
    is_one
        && components.next().is_none()
        && !name.contains(is_bad)
        && !name.starts_with('.')
        && name.ends_with(".safetensors")
}

fn is_made_of(shape: &[usize], factors: &[Vec<usize>]) -> bool {
    let product = |dim: &Vec<usize>| {
        let product = dim
            .iter()
            .try_fold(1usize, |n, &factor| n.checked_mul(factor));
        product.filter(|_| !dim.is_empty())
    };
    shape.len() == factors.len()
        && shape
            .iter()
            .zip(factors)
            .all(|(&size, dim)| product(dim) == Some(size))
}
