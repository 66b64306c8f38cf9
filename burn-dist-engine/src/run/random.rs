//! Random numbers by global index: the same values on every mesh.
//!
//! Element `i` of a random tensor (row-major over its *global* shape) is a function of `(seed, stream, i)` only, where
//! the stream is the number of the tensor in its program. So every rank makes exactly its part, and `fill(region) ==
//! fill(whole)[region]` holds bit for bit: initial weights and dropout masks do not depend on how a tensor is split.
//! [`burn_dist_kernels::random`] says which one: a counter gives four elements (two of an int tensor). Threads of the
//! rank's pool share large parts.
//!
//! Left out on purpose: a state. Who numbers the streams keeps the count.

mod draw;
mod error;
mod pieces;

use crate::burn::data::*;
use burn_backend::{DType, Distribution, Element};
use burn_dist_kernels::random::Philox;
use burn_std::{Shape, bf16, f16};
use core::ops::Range;
use draw::{Float, Int, IntUniform};
pub use error::RandomError;
pub(super) use pieces::Pieces;
use rayon::prelude::*;

/// Elements that one thread makes at a time.
const ELEMENTS_OF_A_PIECE: usize = 1 << 15;

/// Samples that are drawn before they are cast: batches of whole counters, and little of the first cache.
const SAMPLES_OF_A_BLOCK: usize = 512;

/// Makes the part of a random tensor that lies in `region`, a range per dim.
///
/// Equal to cutting `region` out of the tensor that `fill` makes for the whole of `global_shape`.
///
/// # Distributions
/// On floats (computed in f32, then cast; `Flex32` gives f32 data):
/// - `Default` is uniform on `[0, 1)`, `Uniform(a, b)` on `[a, b)`: a value that the cast would round to `b` becomes
///   the largest one below it;
/// - `Normal(mean, std)` by Box-Muller; `Bernoulli(p)` is 1 with probability p, else 0.
///
/// On ints, as Burn's host backends do:
/// - `Default` is uniform over the dtype, `Uniform(a, b)` on the ints of `[trunc(a), trunc(b))`;
/// - `Normal` is truncated towards zero, and to the range of the dtype.
///
/// # Errors
/// See [`RandomError`]; they depend on the arguments only, so all ranks of a mesh get the same ones.
pub fn fill(
    seed: u64,
    stream: u64,
    distribution: Distribution,
    dtype: DType,
    global_shape: &[usize],
    region: &[Range<usize>],
) -> Result<TensorData, RandomError> {
    let inside =
        |(range, size): (&Range<usize>, &usize)| range.start <= range.end && range.end <= *size;
    if region.len() != global_shape.len() || !region.iter().zip(global_shape).all(inside) {
        return Err(RandomError::Region {
            region: region.to_vec(),
            shape: global_shape.to_vec(),
        });
    }
    let shape: Vec<usize> = region.iter().map(|range| range.len()).collect();
    let runs = region_runs(global_shape, region);
    fill_runs(seed, stream, distribution, dtype, shape, runs)
}

/// Makes the part of a random tensor that `runs` name: ranges of global flat indices, one after the other the elements
/// of `local_shape` in row-major order.
///
/// This is [`fill`] for blocks that are no box, such as those of a dim that is a product of factors.
///
/// # Errors
/// As [`fill`]; [`RandomError::Elements`] if the runs have more or fewer elements than `local_shape`.
pub fn fill_runs(
    seed: u64,
    stream: u64,
    distribution: Distribution,
    dtype: DType,
    local_shape: impl Into<Shape>,
    runs: impl Iterator<Item = Range<usize>>,
) -> Result<TensorData, RandomError> {
    let part = Part::new(Philox::new(seed, stream), local_shape.into(), runs)?;
    match dtype {
        DType::F32 | DType::Flex32 => part.floats::<f32>(distribution),
        DType::F64 => part.floats::<f64>(distribution),
        DType::F16 => part.floats::<f16>(distribution),
        DType::BF16 => part.floats::<bf16>(distribution),
        DType::I64 => part.ints::<i64>(distribution),
        DType::I32 => part.ints::<i32>(distribution),
        DType::I16 => part.ints::<i16>(distribution),
        DType::I8 => part.ints::<i8>(distribution),
        DType::U64 => part.ints::<u64>(distribution),
        DType::U32 => part.ints::<u32>(distribution),
        DType::U16 => part.ints::<u16>(distribution),
        DType::U8 => part.ints::<u8>(distribution),
        DType::Bool(_) | DType::QFloat(_) => Err(RandomError::UnsupportedDtype { dtype }),
    }
}

/// How a part of a random tensor is drawn: see [`fill_runs`].
pub(super) struct Drawing<'t> {
    pub seed: u64,
    pub stream: u64,
    pub distribution: Distribution,
    pub dtype: DType,
    pub shape: &'t [usize],
    pub runs: &'t [Range<usize>],
}

impl Drawing<'_> {
    /// Makes all elements.
    ///
    /// # Errors
    /// As [`fill_runs`].
    pub(super) fn fill(self) -> Result<TensorData, RandomError> {
        fill_runs(
            self.seed,
            self.stream,
            self.distribution,
            self.dtype,
            self.shape.to_vec(),
            self.runs.iter().cloned(),
        )
    }
}

/// Returns the contiguous runs of global flat indices of a box, in row-major order.
///
/// `shape = [4, 6], region = [1..3, 2..5]` -> `8..11, 14..17`. Dims that are taken whole join the runs.
///
/// # Panics
/// If `region` has fewer ranges than `shape` has dims.
pub fn region_runs<'a>(
    shape: &'a [usize],
    region: &'a [Range<usize>],
) -> impl Iterator<Item = Range<usize>> + 'a {
    // The dims from `split` on are contiguous in memory: all but the first of them are taken whole.
    let whole = |d: &usize| region[*d] == (0..shape[*d]);
    let inner = (0..shape.len()).rev().take_while(whole).count();
    let split = shape.len().saturating_sub(inner + 1);
    let stride: usize = shape[split..].iter().skip(1).product();
    let first = region.get(split).cloned().unwrap_or(0..1);
    let outer = &region[..split];
    let empty = region.iter().any(|range| range.is_empty());
    let count = if empty {
        0
    } else {
        outer.iter().map(|range| range.len()).product()
    };
    (0..count).map(move |mut n: usize| {
        // The row-major position of run n in the dims before `split`, from the last of them to the first.
        let (mut start, mut scale) = (0, shape[split..].iter().product::<usize>());
        for (range, size) in outer.iter().zip(shape).rev() {
            start += (range.start + n % range.len()) * scale;
            n /= range.len();
            scale *= size;
        }
        start + first.start * stride..start + first.end * stride
    })
}

/// The part to make, but for the distribution and the dtype.
pub(super) struct Part {
    pub(super) philox: Philox,
    shape: Shape,
    pub(super) runs: Vec<Range<usize>>,
    /// How many elements come before each run.
    starts: Vec<usize>,
}

impl Part {
    fn new(
        philox: Philox,
        shape: Shape,
        runs: impl Iterator<Item = Range<usize>>,
    ) -> Result<Self, RandomError> {
        let runs: Vec<_> = runs.collect();
        let mut found = 0;
        let before = |run: &Range<usize>| {
            let start = found;
            found += run.len();
            start
        };
        let starts = runs.iter().map(before).collect();
        let expected = shape.num_elements();
        match found == expected {
            true => Ok(Self {
                philox,
                shape,
                runs,
                starts,
            }),
            false => Err(RandomError::Elements {
                shape: shape.to_vec(),
                expected,
                found,
            }),
        }
    }

    fn floats<T: Float>(self, distribution: Distribution) -> Result<TensorData, RandomError> {
        let samples = draw::of_floats::<T>(distribution)?;
        Ok(self.cast(|philox, index, to| samples.fill(philox, index, to), T::of))
    }

    fn ints<T: Int>(self, distribution: Distribution) -> Result<TensorData, RandomError> {
        let samples = match distribution {
            Distribution::Default => return Ok(self.uniform_ints::<T>(&IntUniform::whole::<T>())),
            Distribution::Uniform(low, high) => {
                return Ok(self.uniform_ints::<T>(&IntUniform::new::<T>(low, high)?));
            }
            Distribution::Normal(mean, std) => draw::normal(mean, std)?,
            Distribution::Bernoulli(p) => draw::bernoulli(p)?,
        };
        Ok(self.cast(|philox, index, to| samples.fill(philox, index, to), T::of))
    }

    fn uniform_ints<T: Int>(self, draw: &IntUniform) -> TensorData {
        self.cast(|philox, index, to| philox.fill(draw, index, to), T::of_bits)
    }

    /// Makes the elements: `fill` draws samples from a flat index on, and `of` makes an element of each.
    fn cast<S: Copy + Default, T: Element + bytemuck::Pod>(
        self,
        fill: impl Fn(&Philox, usize, &mut [S]) + Sync,
        of: impl Fn(S) -> T + Sync,
    ) -> TensorData {
        let mut values = vec![T::default(); self.shape.num_elements()];
        self.each_run(
            size_of::<T>(),
            bytemuck::cast_slice_mut(&mut values),
            &|index, bytes| {
                let values = bytemuck::cast_slice_mut::<u8, T>(bytes);
                in_blocks(index, values, |index, block| {
                    let mut samples = [S::default(); SAMPLES_OF_A_BLOCK];
                    fill(&self.philox, index, &mut samples[..block.len()]);
                    for (value, sample) in block.iter_mut().zip(&samples) {
                        *value = of(*sample);
                    }
                });
            },
        );
        TensorData::new(values, self.shape)
    }

    /// Calls `fill` with the flat index that each stretch of elements begins with, and the bytes of these elements, in
    /// pieces that threads share. Of bytes, or it would be compiled for each dtype.
    fn each_run(&self, size: usize, bytes: &mut [u8], fill: &(dyn Fn(usize, &mut [u8]) + Sync)) {
        let fill = |(piece, bytes): (usize, &mut [u8])| {
            self.each_stretch(piece * ELEMENTS_OF_A_PIECE, size, bytes, fill);
        };
        match bytes.len() > ELEMENTS_OF_A_PIECE * size {
            true => {
                let pieces = bytes.par_chunks_mut(ELEMENTS_OF_A_PIECE * size).enumerate();
                pieces.for_each(fill);
            }
            false => fill((0, bytes)),
        }
    }

    /// Calls `fill` with the flat index that each stretch of elements begins with, and its part of `rest`: `size` of
    /// that for each element, from element `at` on.
    fn each_stretch<T>(
        &self,
        mut at: usize,
        size: usize,
        mut rest: &mut [T],
        fill: impl Fn(usize, &mut [T]),
    ) {
        // The last run that begins before, or with, the first element.
        let mut index = self.starts.partition_point(|start| *start <= at).max(1) - 1;
        while !rest.is_empty() {
            let skipped = at - self.starts[index];
            let run = self.runs[index].start + skipped..self.runs[index].end;
            let count = run.len().min(rest.len() / size);
            let (own, others) = rest.split_at_mut(count * size);
            fill(run.start, own);
            (rest, at, index) = (others, at + count, index + 1);
        }
    }
}

/// Calls `fill` with the flat index that each block of some elements begins with: blocks end where counters do.
fn in_blocks<T>(mut index: usize, mut rest: &mut [T], fill: impl Fn(usize, &mut [T])) {
    while !rest.is_empty() {
        let count = (SAMPLES_OF_A_BLOCK - index % SAMPLES_OF_A_BLOCK).min(rest.len());
        let (block, others) = rest.split_at_mut(count);
        fill(index, block);
        (rest, index) = (others, index + count);
    }
}

#[cfg(test)]
mod tests;
