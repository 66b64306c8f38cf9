//! Reading tensors of a checkpoint into the layouts that they shall have.

use std::collections::BTreeMap;

use burn_backend::TensorData;
use burn_dist_checkpoint::{Checkpoint, Match, Options, Region, Request};
use burn_std::Bytes;

use super::StateError;
use super::saved::LoadOptions;
use crate::mesh::{DType, MeshShape, Rank};
use crate::ops::dtype::to_burn;
use crate::parallel::MeshBackend;
use crate::record::parts::{AnyTensor, Given, Placement};
use burn_dist_checkpoint::CheckpointError;

/// Tensors are read together up to so many bytes.
const GROUP_BYTES: usize = 64 << 20;

/// A tensor that is asked for.
#[derive(Clone, Debug)]
pub struct Want {
    pub key: String,
    /// The type that it shall have.
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub placement: Placement,
}

/// What reads tensors onto a mesh.
pub struct Reader<'a, B: MeshBackend> {
    pub checkpoint: &'a Checkpoint,
    pub device: &'a B::Device,
    pub mesh: &'a MeshShape,
    pub options: LoadOptions,
}

/// What the ranks of this process hold of a tensor, before it is read.
struct Parts {
    /// What they hold that differs, and the bytes for it.
    regions: Vec<(Region, Bytes, Vec<usize>)>,
    part_of: Vec<Option<usize>>,
}

impl<B: MeshBackend> Reader<'_, B> {
    /// Reads tensors, in order.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn read(&self, wants: Vec<Want>) -> Result<Vec<AnyTensor>, StateError> {
        let mut read = Vec::with_capacity(wants.len());
        let mut wants = wants.into_iter().peekable();
        while wants.peek().is_some() {
            let (mut group, mut bytes) = (Vec::new(), 0);
            while let Some(want) = wants.next_if(|_| bytes < GROUP_BYTES) {
                let parts = self.parts(&want)?;
                bytes += parts
                    .regions
                    .iter()
                    .map(|(_, bytes, _)| bytes.len())
                    .sum::<usize>();
                group.push((want, parts));
            }
            self.fill(&mut group)?;
            for (want, parts) in group {
                read.push(self.give(want, parts)?);
            }
        }
        Ok(read)
    }

    fn parts(&self, want: &Want) -> Result<Parts, StateError> {
        let layout = &want.placement.layout;
        let stage = want.placement.stage.as_ref();
        let coord = stage.map(|stage| (stage.pipeline.axis, stage.pipeline.coord(stage.index)));
        let mut known: BTreeMap<Region, usize> = BTreeMap::new();
        let mut parts = Parts {
            regions: Vec::new(),
            part_of: Vec::new(),
        };
        for rank in B::local_ranks(self.device).map(Rank) {
            let is_here = |(axis, coord)| self.mesh.coord(rank, axis) == coord as usize;
            if !coord.is_none_or(is_here) {
                parts.part_of.push(None);
                continue;
            }
            let region = Region::of(layout, self.mesh, rank).map_err(|source| {
                let key = want.key.clone();
                CheckpointError::Region { key, source }
            })?;
            let part = *known.entry(region).or_insert_with_key(|region| {
                let bytes = blank(region.numel(), want.dtype.size());
                let shape = layout.local_shape(self.mesh, rank);
                parts.regions.push((region.clone(), bytes, shape));
                parts.regions.len() - 1
            });
            parts.part_of.push(Some(part));
        }
        Ok(parts)
    }

    fn fill(&self, group: &mut [(Want, Parts)]) -> Result<(), StateError> {
        let converts: Vec<_> = group
            .iter()
            .map(|(want, _)| {
                let found = self.checkpoint.manifest().tensor(&want.key)?.dtype()?;
                let differs = self.options.convert && found != want.dtype;
                differs.then(|| converter(found, want.dtype))
            })
            .collect();
        let mut requests = Vec::new();
        for ((want, parts), convert) in group.iter_mut().zip(&converts) {
            for (region, bytes, _) in &mut parts.regions {
                let request =
                    Request::new(&want.key, want.dtype, &want.shape, region.clone(), bytes);
                requests.push(match convert {
                    Some(convert) => request.converted(convert),
                    None => request,
                });
            }
        }
        let options = Options {
            verify: self.options.verify,
            matching: Match::Subset,
            ..Options::default()
        };
        self.checkpoint.load(&mut requests, options)?;
        Ok(())
    }

    fn give(&self, want: Want, parts: Parts) -> Result<AnyTensor, StateError> {
        let data = |(_, bytes, shape): (Region, Bytes, Vec<usize>)| TensorData {
            bytes,
            shape: shape.into(),
            dtype: to_burn(want.dtype),
        };
        let given = Given {
            placement: want.placement,
            dtype: want.dtype,
            parts: parts.regions.into_iter().map(data).collect(),
            part_of: parts.part_of,
        };
        Ok(B::give(given, self.device)?)
    }
}

/// Returns zeros, aligned as elements of so many bytes.
fn blank(elements: usize, size: usize) -> Bytes {
    match size {
        2 => Bytes::from_elems(vec![0u16; elements]),
        4 => Bytes::from_elems(vec![0u32; elements]),
        8 => Bytes::from_elems(vec![0u64; elements]),
        _ => Bytes::from_elems(vec![0u8; elements * size]),
    }
}

/// Returns what turns elements of one type into those of another, as Burn converts tensors.
fn converter(from: DType, to: DType) -> impl Fn(&[u8], &mut [u8]) + Sync {
    move |source, target| {
        let elements = source.len() / from.size().max(1);
        let mut bytes = blank(elements, from.size());
        bytes.copy_from_slice(source);
        let data = TensorData {
            bytes,
            shape: [elements].into(),
            dtype: to_burn(from),
        };
        target.copy_from_slice(&data.convert_dtype(to_burn(to)).bytes);
    }
}
