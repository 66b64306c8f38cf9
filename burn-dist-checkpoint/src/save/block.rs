//! Blocks that ranks hold of a tensor, and which of its holders writes each.

use super::{Share, Tensor};
use crate::error::CheckpointError;
use crate::region::Region;
use burn_dist_mesh::{MeshShape, Rank};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Copies of a block that several writers have are split among them from this size on.
const SPLIT_BYTES: usize = 4 << 20;

/// A block of a tensor, and the writers that have it, each with the first of its ranks that hold it.
pub(super) struct Block {
    pub tensor: usize,
    region: Region,
    element_bytes: usize,
    holders: BTreeMap<usize, Rank>,
}

/// Returns the blocks of a tensor: ranks that agree in the axes of the layout hold the same.
pub(super) fn blocks_of(
    index: usize,
    tensor: &Tensor,
    mesh: &MeshShape,
    writers: &[usize],
) -> Result<Vec<Block>, CheckpointError> {
    let axes = tensor.layout.axes_used();
    let mut found: BTreeMap<Vec<usize>, Block> = BTreeMap::new();
    for (rank, &writer) in mesh.ranks().zip(writers) {
        let is_elsewhere = tensor.stage.is_some_and(|stage| {
            let axis = mesh.pipeline_axis();
            axis.is_some_and(|axis| mesh.coord(rank, axis) != stage)
        });
        if is_elsewhere {
            continue;
        }
        let coords = axes.iter().map(|&axis| mesh.coord(rank, axis)).collect();
        let block = match found.entry(coords) {
            Entry::Occupied(block) => block.into_mut(),
            Entry::Vacant(place) => {
                let region = Region::of(&tensor.layout, mesh, rank).map_err(|source| {
                    let key = tensor.key.clone();
                    CheckpointError::Region { key, source }
                })?;
                place.insert(Block {
                    tensor: index,
                    region,
                    element_bytes: tensor.dtype.size(),
                    holders: BTreeMap::new(),
                })
            }
        };
        block.holders.entry(writer).or_insert(rank);
    }
    let blocks = found.into_values();
    Ok(blocks.filter(|block| block.region.numel() > 0).collect())
}

impl Block {
    pub(super) fn num_bytes(&self) -> usize {
        self.region.numel() * self.element_bytes
    }

    /// Gives the block to those of its holders that have least.
    pub(super) fn share_out(self, tensors: &[Tensor], shares: &mut [Vec<Share>], load: &mut [u64]) {
        let parts = (self.num_bytes() / SPLIT_BYTES).clamp(1, self.holders.len());
        for part in 0..parts {
            let (region, elements) = self.region.part(parts, part);
            let least = self.holders.iter().min_by_key(|(writer, _)| load[**writer]);
            let Some((&writer, &rank)) = least.filter(|_| !elements.is_empty()) else {
                continue;
            };
            let bytes = elements.start * self.element_bytes..elements.end * self.element_bytes;
            load[writer] += bytes.len() as u64;
            let tensor = &tensors[self.tensor];
            shares[writer].push(Share {
                tensor: self.tensor,
                key: tensor.key.clone(),
                dtype: tensor.dtype,
                rank,
                region,
                bytes,
            });
        }
    }
}
