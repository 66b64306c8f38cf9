//! Random numbers by global index: the same values on every mesh.
//!
//! Element `i` of a random tensor (row-major over its *global* shape) is a function of `(seed, stream, i)` only, where
//! the stream is the number of the tensor in its program. So every rank makes exactly its part, and `fill(region) ==
//! fill(whole)[region]` holds bit for bit: initial weights and dropout masks do not depend on how a tensor is split.
//! The arithmetic is IEEE addition, multiplication and square root, so it does not depend on the platform's libm
//! either. Threads of the rank's pool share large parts.
//!
//! # Source
//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). The seed is the key, the stream
//! the upper half of the counter, the index the lower half; a counter gives four elements (two of an int tensor).
//!
//! Left out on purpose: a state. Who numbers the streams keeps the count.

mod draw;
mod error;
mod philox;

use crate::burn::data::*;
use burn_backend::{DType, Distribution, Element};
use burn_std::{Shape, bf16, f16};
use core::ops::Range;
use draw::{Bernoulli, Draw, Float, Int, IntNormal, IntUniform, Normal, Uniform};
pub use error::RandomError;
use philox::Philox;
use rayon::prelude::*;

/// Elements that one thread makes at a time.
const ELEMENTS_OF_A_PIECE: usize = 1 << 15;

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
struct Part {
    philox: Philox,
    shape: Shape,
    runs: Vec<Range<usize>>,
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
        match distribution {
            Distribution::Default => self.draw(&Uniform::<T>::new(0.0, 1.0)?),
            Distribution::Uniform(low, high) => self.draw(&Uniform::<T>::new(low, high)?),
            Distribution::Normal(mean, std) => self.draw(&Normal::<T>::new(mean, std)?),
            Distribution::Bernoulli(p) => self.draw(&Bernoulli::new(p, T::of(0.0), T::of(1.0))?),
        }
    }

    fn ints<T: Int>(self, distribution: Distribution) -> Result<TensorData, RandomError> {
        match distribution {
            Distribution::Default => self.draw(&IntUniform::<T>::whole()),
            Distribution::Uniform(low, high) => self.draw(&IntUniform::<T>::new(low, high)?),
            Distribution::Normal(mean, std) => self.draw(&IntNormal::<T>::new(mean, std)?),
            Distribution::Bernoulli(p) => self.draw(&Bernoulli::new(p, T::of(0.0), T::of(1.0))?),
        }
    }

    fn draw<T, D, const PER: usize>(self, draw: &D) -> Result<TensorData, RandomError>
    where
        T: Element,
        D: Draw<T, PER> + Sync,
    {
        let Self {
            philox,
            shape,
            runs,
            starts,
        } = self;
        let count = shape.num_elements();
        let fill = |(piece, values): (usize, &mut [T])| {
            let mut at = piece * ELEMENTS_OF_A_PIECE;
            let mut rest = values;
            // The last run that begins before, or with, the piece.
            let mut index = starts.partition_point(|start| *start <= at).max(1) - 1;
            while !rest.is_empty() {
                let skipped = at - starts[index];
                let run = runs[index].start + skipped..runs[index].end;
                let count = run.len().min(rest.len());
                let (own, others) = rest.split_at_mut(count);
                philox.fill(draw, run.start, own);
                (rest, at, index) = (others, at + count, index + 1);
            }
        };
        let mut values = vec![T::default(); count];
        match count > ELEMENTS_OF_A_PIECE {
            true => {
                let pieces = values.chunks_mut(ELEMENTS_OF_A_PIECE).enumerate();
                let fill = &fill;
                let pieces = pieces.map(|piece| Box::new(move || fill(piece)) as _);
                in_parallel(pieces.collect());
            }
            false => fill((0, &mut values[..])),
        }
        Ok(TensorData::new(values, shape))
    }
}

/// Runs pieces of work on the threads of the rank's pool: boxed, or what shares them out would be compiled for each
/// distribution of each type.
fn in_parallel(pieces: Vec<Box<dyn FnOnce() + Send + '_>>) {
    pieces.into_par_iter().for_each(|piece| piece());
}

#[cfg(test)]
mod tests;
