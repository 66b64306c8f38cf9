//! Reading tensors of a checkpoint into the layouts that they shall have.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use burn_backend::TensorData;
use burn_dist_checkpoint::convert::convert_floats;
use burn_dist_checkpoint::hf::{Float8, Folder, Form};
use burn_dist_checkpoint::{
    Checkpoint, CheckpointError, Match, NonFinite, Options, Region, Request,
};
use burn_dist_front::checkpoint::{float8, threads::in_threads};
use burn_std::Bytes;

use super::StateError;
use super::opened::LoadOptions;
use crate::mesh::{DType, MeshShape, Rank};
use crate::ops::dtype::to_burn;
use crate::record::parts::{Placement, TensorParts};
use crate::run::Fault;
use burn_dist_door::AnyTensor;

/// Tensors are read together up to so many bytes, so that threads seldom wait for each other.
const GROUP_BYTES: usize = 256 << 20;

/// A tensor that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Want {
    pub key: String,
    /// The type that it shall have.
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub placement: Placement,
    /// How a folder's tensor holds it.
    pub form: Form,
}

/// Where tensors are read from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Checkpoint(&'a Checkpoint),
    Folder(&'a Folder),
}

/// Reads tensors onto a mesh.
pub(super) struct Reader<'a> {
    source: Source<'a>,
    /// The ranks of this process.
    ranks: Range<u32>,
    /// Makes a tensor of what the ranks hold.
    give: &'a dyn Fn(TensorParts) -> Result<AnyTensor, Fault>,
    pub mesh: &'a MeshShape,
    options: LoadOptions,
    /// Bytes read so far.
    pub count: ByteCount,
    /// Which values of that are not finite; of a checkpoint, its manifest says it.
    non_finite: Mutex<Option<NonFinite>>,
}

/// Bytes of all reads so far, in this process.
#[derive(Debug, Default)]
pub(super) struct ByteCount {
    /// Bytes of the elements that were asked for, as they are in the files.
    needed: AtomicU64,
    /// Bytes that were read for them.
    read: AtomicU64,
}

impl ByteCount {
    fn add(&self, needed: u64, read: u64) {
        self.needed.fetch_add(needed, Ordering::Relaxed);
        self.read.fetch_add(read, Ordering::Relaxed);
    }

    /// Returns how many were needed, and how many were read for them.
    pub(super) fn get(&self) -> (u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.needed), of(&self.read))
    }
}

/// The parts of a tensor that the ranks of this process hold, before they are read.
struct Parts {
    /// Each different part once, with memory for its bytes.
    regions: Vec<(Region, Bytes, Vec<usize>)>,
    part_of: Vec<Option<usize>>,
}

/// Elements of a parameter that are in one tensor.
struct Piece<'p> {
    key: String,
    dtype: DType,
    shape: Vec<usize>,
    region: Region,
    bytes: &'p mut [u8],
    form: Form,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        source: Source<'a>,
        mesh: &'a MeshShape,
        ranks: Range<u32>,
        give: &'a dyn Fn(TensorParts) -> Result<AnyTensor, Fault>,
        options: LoadOptions,
    ) -> Self {
        Self {
            source,
            ranks,
            give,
            mesh,
            options,
            count: ByteCount::default(),
            non_finite: Mutex::default(),
        }
    }

    /// Reads tensors, in order.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) fn read(&self, wants: Vec<Want>) -> Result<Vec<AnyTensor>, StateError> {
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
        for rank in self.ranks.clone().map(Rank) {
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
        let mut others = Vec::with_capacity(group.len());
        for (want, parts) in group {
            match self.source {
                Source::Folder(folder) if folder.is_float8(&want.key) => {
                    self.fill_float8(folder, want, parts)?;
                }
                _ => others.push((want, parts)),
            }
        }
        self.fill_alike(&mut others)
    }

    /// Reads parameters that the source has in a type of their kind.
    fn fill_alike(&self, group: &mut [(&mut Want, &mut Parts)]) -> Result<(), StateError> {
        let mut pieces = Vec::new();
        for (want, parts) in group {
            for (region, bytes, _) in &mut parts.regions {
                pieces.extend(self.pieces(want, region, bytes)?);
            }
        }
        let names: Vec<(String, DType)> = pieces
            .iter()
            .map(|piece| (piece.key.clone(), piece.dtype))
            .collect();
        let lossy: Vec<AtomicBool> = names.iter().map(|_| AtomicBool::new(false)).collect();
        let converts: Vec<_> = names
            .iter()
            .zip(&lossy)
            .map(|((key, dtype), is_lossy)| {
                let found = self.dtype(key)?;
                let differs = self.options.convert && found != *dtype;
                differs.then(|| converter(found, *dtype, is_lossy))
            })
            .collect();
        let mut requests = Vec::with_capacity(pieces.len());
        for (piece, convert) in pieces.into_iter().zip(&converts) {
            let Piece {
                key,
                dtype,
                shape,
                region,
                bytes,
                form,
            } = piece;
            let request = Request::new(key, dtype, &shape, region, bytes);
            let request = match convert {
                Some(convert) => request.converted(convert),
                None => request,
            };
            requests.push((form, request));
        }
        match self.source {
            Source::Checkpoint(checkpoint) => {
                let options = Options {
                    verify: self.options.verify,
                    matching: Match::Subset,
                    ..Options::default()
                };
                let mut requests: Vec<_> = requests.into_iter().map(|(_, it)| it).collect();
                let loaded = checkpoint.load(&mut requests, options)?;
                self.count.add(loaded.bytes_needed, loaded.bytes_read);
            }
            Source::Folder(folder) => {
                let threads = Options::default().threads;
                let count = &self.count;
                in_threads(threads, requests, |(form, mut request)| {
                    let read = folder.read(form, &mut request)?;
                    count.add(read.needed, read.read);
                    Ok(())
                })?;
            }
        }
        let mut each = names.iter().zip(&lossy);
        match each.find(|(_, is_lossy)| is_lossy.load(Ordering::Relaxed)) {
            Some(((name, dtype), _)) => Err(StateError::Range {
                name: name.clone(),
                dtype: *dtype,
            }),
            None => Ok(()),
        }
    }

    /// Returns what of a region is in which tensor.
    fn pieces<'p>(
        &self,
        want: &Want,
        region: &Region,
        bytes: &'p mut [u8],
    ) -> Result<Vec<Piece<'p>>, StateError> {
        let (dtype, members) = (want.dtype, want.form.members(&want.key, &want.shape));
        if want.form != Form::Stacked {
            let members = members.into_iter().zip([(region.clone(), bytes)]);
            let piece = |((key, form, shape), (region, bytes))| Piece {
                key,
                dtype,
                shape,
                region,
                bytes,
                form,
            };
            return Ok(members.map(piece).collect());
        }
        let each = want.shape.iter().skip(1).product();
        let parts = region.by_parts(members.len(), each);
        let parts = parts.map_err(|source| {
            let key = want.key.clone();
            CheckpointError::Region { key, source }
        })?;
        let mut rest = bytes;
        let pieces = parts.into_iter().map(|(number, region)| {
            let (bytes, others) =
                std::mem::take(&mut rest).split_at_mut(region.numel() * dtype.size());
            rest = others;
            let (key, form, shape) = members[number].clone();
            Piece {
                key,
                dtype,
                shape,
                region,
                bytes,
                form,
            }
        });
        Ok(pieces.collect())
    }

    /// Reads a parameter that a folder has in 8 bits: the bits that the ranks need, and the factors of all blocks.
    fn fill_float8(
        &self,
        folder: &Folder,
        want: &Want,
        parts: &mut Parts,
    ) -> Result<(), StateError> {
        let Some(float8) = Float8::of(want.form, &want.shape) else {
            let (key, form, shape) = (want.key.clone(), want.form, want.shape.clone());
            return Err(CheckpointError::Form { key, form, shape }.into());
        };
        let (key, shape) = (Float8::factors_name(&want.key), float8.factors_shape());
        let whole = Region::whole(&shape);
        let whole = whole.map_err(|source| {
            let key = key.clone();
            CheckpointError::Region { key, source }
        })?;
        let mut factors = vec![0; 4 * whole.numel()];
        let mut request = Request::new(&key, DType::F32, &shape, whole, &mut factors);
        let read = folder.read(Form::Same, &mut request)?;
        self.count.add(read.needed, read.read);
        let (factors, _) = factors.as_chunks::<4>();
        let factors: Vec<f32> = factors.iter().map(|it| f32::from_le_bytes(*it)).collect();
        for (region, bytes, _) in &mut parts.regions {
            let mut bits = vec![0; region.numel()];
            let mut request =
                Request::new(&want.key, DType::U8, &want.shape, region.clone(), &mut bits);
            let read = folder.read_float8(want.form, &mut request)?;
            self.count.add(read.needed, read.read);
            let values = float8::values(&float8, region, &bits, &factors);
            let values: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            if !convert_floats(DType::F32, want.dtype, &values, bytes) {
                let (name, dtype) = (want.key.clone(), want.dtype);
                return Err(StateError::Range { name, dtype });
            }
        }
        Ok(())
    }

    /// Returns the type of a tensor, if it is there.
    fn dtype(&self, key: &str) -> Option<DType> {
        match self.source {
            Source::Checkpoint(checkpoint) => checkpoint.manifest().tensor(key)?.dtype(),
            Source::Folder(folder) => folder.tensor(key)?.0,
        }
    }

    /// Returns which values of a folder that it has read are not finite.
    pub(super) fn non_finite(&self) -> Option<NonFinite> {
        let found = self.non_finite.lock();
        found.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks for values that are not finite.
    fn look(&self, want: &Want, parts: &Parts) {
        if let Source::Checkpoint(_) = self.source {
            return;
        }
        let regions = parts.regions.iter();
        let found = regions.map(|(_, bytes, _)| NonFinite::among(&want.key, want.dtype, bytes));
        let mut all = self
            .non_finite
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *all = NonFinite::sum(found.chain([all.take()]));
    }

    fn give(&self, want: Want, parts: Parts) -> Result<AnyTensor, StateError> {
        self.look(&want, &parts);
        let data = |(_, bytes, shape): (Region, Bytes, Vec<usize>)| {
            TensorData::from_bytes(bytes, shape, to_burn(want.dtype))
        };
        let tensor = TensorParts {
            placement: want.placement,
            dtype: want.dtype,
            parts: parts.regions.into_iter().map(data).collect(),
            part_of: parts.part_of,
        };
        Ok((self.give)(tensor)?)
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

/// Returns what turns elements of one type into those of another: floats rounded to nearest, others as Burn does. It
/// says of floats if the type has no place for one.
fn converter(
    from: DType,
    to: DType,
    is_lossy: &AtomicBool,
) -> impl Fn(&[u8], &mut [u8]) + Sync + '_ {
    move |source, target| {
        if from.is_float() && to.is_float() {
            if !convert_floats(from, to, source, target) {
                is_lossy.store(true, Ordering::Relaxed);
            }
            return;
        }
        let elements = source.len() / from.size().max(1);
        let mut bytes = blank(elements, from.size());
        bytes.copy_from_slice(source);
        let data = TensorData::from_bytes(bytes, [elements], to_burn(from));
        target.copy_from_slice(data.convert_dtype(to_burn(to)).as_bytes());
    }
}
