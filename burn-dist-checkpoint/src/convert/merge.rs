//! A folder with LoRA's adapters merged into its matrices, tensor by tensor.

use super::{ConvertError, Converted, Kind, convert_floats};
use crate::error::CheckpointError;
use crate::hf::{Factor, Folder, FolderWriter, Form, Tensor};
use crate::load::Request;
use crate::region::Region;
use burn_dist_mesh::DType;
use std::path::Path;

/// A merge: a base, adapters by PEFT's names, and where the result is written.
pub struct Merge<'a> {
    /// The base.
    pub base: &'a Folder,
    /// The file of the adapters ([`Folder::open_file`]).
    pub adapters: &'a Folder,
    /// How often the product of two factors counts.
    pub scale: f32,
    /// The folder that is written.
    pub to: &'a Path,
    /// The type that floats get; none if they keep theirs.
    pub dtype: Option<DType>,
    /// How many bytes of tensors a file has at most.
    pub shard_bytes: Option<u64>,
}

impl Merge<'_> {
    /// Writes the base with `w + scale * (b @ a)` in place of every matrix `m.weight` of a layer `m` that has factors
    /// ([`Factor`]): in f32, rounded once to the type of the matrix. One tensor is in memory at a time.
    ///
    /// Which tensors the adapters have is not compared with the base: who knows the model does that.
    ///
    /// # Errors
    /// [`ConvertError::DType`] for a tensor of the base that is none of floats of 16 to 64 bits,
    /// [`ConvertError::Floats`], [`ConvertError::Range`]; [`ConvertError::Checkpoint`], also if a factor has another
    /// shape than its matrix.
    ///
    /// # Source
    /// `peft/tuners/lora/layer.py`, `Linear.merge`. Differs: the sum is not rounded to 16 bits before it is added.
    pub fn run(&self) -> Result<Converted, ConvertError> {
        let mut tensors = Vec::new();
        for (name, dtype, shape) in self.base.tensors() {
            let is_float = |dtype: &DType| dtype.is_float() && dtype.size() >= 2;
            let found = dtype.filter(is_float).ok_or_else(|| ConvertError::DType {
                name: name.to_owned(),
                found: self.base.dtype_name(name).to_owned(),
            })?;
            let dtype = self.dtype.unwrap_or(found);
            if !is_float(&dtype) {
                return Err(ConvertError::Floats { dtype });
            }
            tensors.push(Tensor::new(name, dtype, shape.to_vec()));
        }
        let parameters = tensors.len();
        let mut writer = FolderWriter::create(self.to, tensors, self.shard_bytes)?;
        let order: Vec<(String, DType)> = writer
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.dtype))
            .collect();
        let mut bytes = 0;
        for (name, dtype) in order {
            let (found, shape) = self.base.tensor(&name).unwrap_or((None, &[]));
            let found = found.unwrap_or(DType::F32);
            let read = whole(self.base, &name, found, shape)?;
            let merged = self.merged(&name, found, shape, &read)?;
            let (found, read) = match &merged {
                Some(merged) => (DType::F32, merged),
                None => (found, &read),
            };
            let mut written = vec![0; read.len() / found.size() * dtype.size()];
            if !convert_floats(found, dtype, read, &mut written) {
                return Err(ConvertError::Range { key: name, dtype });
            }
            writer.write(&name, &written)?;
            bytes += written.len() as u64;
        }
        writer.commit()?;
        Ok(Converted {
            from: Kind::Hf,
            to: Kind::Hf,
            path: self.to.to_path_buf(),
            parameters,
            bytes,
        })
    }

    /// Returns a matrix in f32 with the product of its factors added, if it has some.
    fn merged(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, ConvertError> {
        let factor = |factor: Factor| {
            let name = factor.tensor(name.strip_suffix(".weight")?);
            let (dtype, shape) = self.adapters.tensor(&name)?;
            Some((name, dtype.unwrap_or(DType::F32), shape))
        };
        let (Some(a), Some(b), &[outputs, inputs]) = (factor(Factor::A), factor(Factor::B), shape)
        else {
            return Ok(None);
        };
        let rank = a.2.first().copied().unwrap_or(0);
        let a_ri = floats(self.adapters, &a.0, a.1, &[rank, inputs])?;
        let b_or = floats(self.adapters, &b.0, b.1, &[outputs, rank])?;
        let mut w_oi = vec![0; outputs * inputs * 4];
        if !convert_floats(dtype, DType::F32, bytes, &mut w_oi) {
            let (key, dtype) = (name.to_owned(), DType::F32);
            return Err(ConvertError::Range { key, dtype });
        }
        let rows = w_oi.chunks_exact_mut((inputs * 4).max(1));
        let mut sum = vec![0.0; inputs];
        for (row, b_r) in rows.zip(b_or.chunks_exact(rank.max(1))) {
            sum.fill(0.0);
            for (b, a_i) in b_r.iter().zip(a_ri.chunks_exact(inputs.max(1))) {
                for (sum, a) in sum.iter_mut().zip(a_i) {
                    *sum += b * a;
                }
            }
            let (elements, _) = row.as_chunks_mut::<4>();
            for (element, sum) in elements.iter_mut().zip(&sum) {
                let merged = f32::from_le_bytes(*element) + self.scale * sum;
                *element = merged.to_le_bytes();
            }
        }
        Ok(Some(w_oi))
    }
}

/// Reads all of a tensor in its own type.
fn whole(
    folder: &Folder,
    name: &str,
    dtype: DType,
    shape: &[usize],
) -> Result<Vec<u8>, CheckpointError> {
    let region = Region::whole(shape).map_err(|source| CheckpointError::Region {
        key: name.to_owned(),
        source,
    })?;
    let mut bytes = vec![0; region.numel() * dtype.size()];
    let mut request = Request::new(name, dtype, shape, region, &mut bytes);
    folder.read(Form::Same, &mut request)?;
    Ok(bytes)
}

/// Reads all of a tensor of this shape in f32.
fn floats(
    folder: &Folder,
    name: &str,
    dtype: DType,
    shape: &[usize],
) -> Result<Vec<f32>, ConvertError> {
    let read = whole(folder, name, dtype, shape)?;
    let mut bytes = vec![0; read.len() / dtype.size().max(1) * 4];
    if !convert_floats(dtype, DType::F32, &read, &mut bytes) {
        let (key, dtype) = (name.to_owned(), DType::F32);
        return Err(ConvertError::Range { key, dtype });
    }
    let (elements, _) = bytes.as_chunks::<4>();
    Ok(elements.iter().map(|it| f32::from_le_bytes(*it)).collect())
}
