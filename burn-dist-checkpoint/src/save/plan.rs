//! The parts that each writer writes: a pure function of tensors, mesh and writers.

use super::block::blocks_of;
use super::{Share, Tensor};
use crate::error::CheckpointError;
use crate::format::{FileEntry, Manifest, PieceEntry, TensorEntry, checksum, local_shape};
use crate::format::{Header, SaveId, block_bytes, file_name, is_key, safetensors_name};
use burn_dist_layout::Layout;
use burn_dist_mesh::MeshShape;

/// The parts that each writer writes.
///
/// The same on every process that gives the same tensors, mesh and writers. Every element is written once: of the
/// writers that hold a block, one takes it, the one that has least so far; large blocks are split among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePlan {
    mesh: MeshShape,
    /// Sorted by key.
    tensors: Vec<Tensor>,
    /// For each writer, in the order of its file.
    shares: Vec<Vec<Share>>,
}

impl SavePlan {
    /// Plans who writes what. `writers` is the writer of each rank: its process, for example.
    ///
    /// # Errors
    /// [`CheckpointError::DuplicateKey`], [`CheckpointError::Key`], [`CheckpointError::Layout`],
    /// [`CheckpointError::Partial`], [`CheckpointError::DType`], [`CheckpointError::Stage`],
    /// [`CheckpointError::Region`] and [`CheckpointError::Writers`].
    pub fn new(
        mesh: &MeshShape,
        mut tensors: Vec<Tensor>,
        writers: &[usize],
    ) -> Result<Self, CheckpointError> {
        let num_writers = check_writers(mesh, writers)?;
        tensors.sort_by(|a, b| a.key.cmp(&b.key));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].key == pair[1].key) {
            let key = pair[0].key.clone();
            return Err(CheckpointError::DuplicateKey { key });
        }
        let mut blocks = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            check(tensor, mesh)?;
            blocks.extend(blocks_of(index, tensor, mesh, writers)?);
        }
        // The largest first, so that small ones even out what is left.
        blocks.sort_by_key(|block| (std::cmp::Reverse(block.num_bytes()), block.tensor));
        let mut shares = vec![Vec::new(); num_writers];
        let mut load = vec![0; num_writers];
        for block in blocks {
            block.share_out(&tensors, &mut shares, &mut load);
        }
        for list in &mut shares {
            // Large elements first: every tensor is aligned to its elements, as in files of the safetensors library.
            let order = |share: &Share| std::cmp::Reverse(share.dtype.size());
            list.sort_by(|a: &Share, b: &Share| {
                let a_key = (order(a), a.tensor, a.region.start());
                a_key.cmp(&(order(b), b.tensor, b.region.start()))
            });
        }
        Ok(Self {
            mesh: mesh.clone(),
            tensors,
            shares,
        })
    }

    /// Returns the number of writers.
    pub fn num_writers(&self) -> usize {
        self.shares.len()
    }

    /// Returns what a writer writes, in the order of its file; nothing if there is no such writer.
    pub fn shares(&self, writer: usize) -> &[Share] {
        self.shares.get(writer).map_or(&[], Vec::as_slice)
    }

    /// Returns the bytes of the tensors' elements that a writer writes.
    pub fn num_bytes(&self, writer: usize) -> u64 {
        let shares = self.shares(writer).iter();
        shares.map(|share| share.bytes.len() as u64).sum()
    }

    /// Returns the tensors, sorted by key.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the tensor of which a share is a piece.
    pub fn tensor_of(&self, share: &Share) -> &Tensor {
        &self.tensors[share.tensor]
    }

    /// Returns the size of the blocks that have a checksum.
    pub fn block_bytes(&self) -> usize {
        let all = (0..self.num_writers()).map(|writer| self.num_bytes(writer));
        block_bytes(all.sum())
    }

    /// Returns the header of a writer's file.
    pub(crate) fn header(&self, writer: usize, id: SaveId) -> Result<Vec<u8>, CheckpointError> {
        let entries: Vec<_> = self.shares(writer).iter().map(Share::entry).collect();
        let entries = entries
            .iter()
            .zip(self.shares(writer))
            .map(|((name, dtype), share)| {
                let factors = factors(&self.tensors[share.tensor].layout);
                let shape = local_shape(factors.as_deref(), share.region.extent());
                (name.as_str(), *dtype, shape, share.bytes.len() as u64)
            });
        Header::to_bytes(&Header::metadata_of(id, writer), entries)
            .map_err(|source| CheckpointError::Header { writer, source })
    }

    /// Returns the manifest of a save, without checksums of blocks.
    pub(crate) fn manifest(&self, id: SaveId) -> Result<Manifest, CheckpointError> {
        let mut tensors: Vec<TensorEntry> =
            self.tensors.iter().map(|t| entry(t, &self.mesh)).collect();
        let mut files = Vec::new();
        for writer in 0..self.num_writers() {
            let header = self.header(writer, id)?;
            let mut offset = header.len() as u64;
            for share in self.shares(writer) {
                tensors[share.tensor].pieces.push(PieceEntry {
                    file: writer,
                    offset,
                    start: share.region.start().to_vec(),
                    extent: share.region.extent().to_vec(),
                    checksums: Vec::new(),
                });
                offset += share.bytes.len() as u64;
            }
            files.push(FileEntry {
                name: file_name(writer, self.num_writers()),
                bytes: offset,
                header_bytes: header.len() as u64,
                header_checksum: checksum(&header),
            });
        }
        Ok(Manifest {
            save_id: id,
            block_bytes: self.block_bytes(),
            mesh: self.mesh.clone(),
            metadata: serde_json::Map::new(),
            files,
            tensors,
        })
    }
}

fn entry(tensor: &Tensor, mesh: &MeshShape) -> TensorEntry {
    TensorEntry {
        key: tensor.key.clone(),
        dtype: tensor.dtype.name().to_owned(),
        shape: tensor.layout.shape(),
        factors: factors(&tensor.layout),
        layout: tensor.layout.display(mesh).to_string(),
        stage: tensor.stage,
        pieces: Vec::new(),
    }
}

/// Returns the factors of every dim, if one has several.
fn factors(layout: &Layout) -> Option<Vec<Vec<usize>>> {
    let has_several = layout.dims.iter().any(|dim| dim.factors.len() > 1);
    has_several.then(|| {
        let of = |dim: &burn_dist_layout::DimLayout| {
            dim.factors.iter().map(|factor| factor.size).collect()
        };
        layout.dims.iter().map(of).collect()
    })
}

fn check_writers(mesh: &MeshShape, writers: &[usize]) -> Result<usize, CheckpointError> {
    let mut used: Vec<usize> = writers.to_vec();
    used.sort_unstable();
    used.dedup();
    match writers.len() == mesh.num_ranks() && used.iter().copied().eq(0..used.len()) {
        true => Ok(used.len()),
        false => Err(CheckpointError::Writers {
            ranks: mesh.num_ranks(),
            writers: writers.to_vec(),
        }),
    }
}

fn check(tensor: &Tensor, mesh: &MeshShape) -> Result<(), CheckpointError> {
    let key = || tensor.key.clone();
    if !is_key(&tensor.key) {
        return Err(CheckpointError::Key { key: key() });
    }
    let dtype = tensor.dtype;
    if safetensors_name(dtype).is_none() {
        return Err(CheckpointError::DType { key: key(), dtype });
    }
    let valid = tensor.layout.validate(mesh);
    valid.map_err(|source| CheckpointError::Layout { key: key(), source })?;
    if tensor.layout.has_partial() {
        let layout = tensor.layout.display(mesh).to_string();
        return Err(CheckpointError::Partial { key: key(), layout });
    }
    let stages = mesh.pipeline_axis().map_or(1, |axis| mesh.size(axis));
    match tensor.stage.filter(|&stage| stage >= stages) {
        Some(stage) => Err(CheckpointError::Stage {
            key: key(),
            stage,
            stages,
        }),
        None => Ok(()),
    }
}
