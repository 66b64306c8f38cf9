//! Copies: elements of an array that lies in memory in any order, one after the other; and arrays one behind the other.
//!
//! Runs of elements are moved as they are. Where the last dim does not run through memory but another does, both are
//! gone through in blocks, so that every line of the cache is read once. All threads of rayon's pool share the result.

use std::mem::MaybeUninit;

use bytemuck::Pod;
use rayon::prelude::*;

mod rows;
mod turn;

use super::error::RegionError;
use super::memory::{bytes_of, places_of};
use super::stream::{self, STREAM_MIN};
pub use rows::{add_rows, pick_rows};
use turn::Turn;

/// An array in memory.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    /// Its bytes, aligned as its elements are.
    pub bytes: &'a [u8],
    /// Bytes of an element: 1, 2, 4 or 8.
    pub size: usize,
    /// The element at index zero of every dim.
    pub offset: usize,
    /// Its sizes.
    pub shape: &'a [usize],
    /// Elements from one index to the next, for each dim.
    pub strides: &'a [isize],
}

/// A dim: how many, and how far apart.
type Dim = (usize, isize);

/// Elements along a dim that are shared out together.
const BLOCK: usize = 64;
/// Bytes of a result that is worth a second thread.
const SHARED_MIN: usize = 128 << 10;
/// Bytes of a run that is written past the cache.
const RUN_MIN: usize = 1 << 10;

impl Array<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks that every element lies inside.
    fn check(&self) -> Result<(), RegionError> {
        let wrong = |what: String| Err(RegionError::Memory { what });
        if self.strides.len() != self.shape.len() || ![1, 2, 4, 8].contains(&self.size) {
            return wrong(format!(
                "a copy has {} dims and {} strides, and elements of {} bytes, not 1, 2, 4 or 8",
                self.shape.len(),
                self.strides.len(),
                self.size
            ));
        }
        if self.elements() == 0 {
            return Ok(());
        }
        let (mut least, mut most) = (self.offset as isize, self.offset as isize);
        for (size, stride) in self.shape.iter().zip(self.strides) {
            let reach = stride.saturating_mul(*size as isize - 1);
            least = least.saturating_add(reach.min(0));
            most = most.saturating_add(reach.max(0));
        }
        let is_inside =
            least >= 0 && (most as usize + 1).saturating_mul(self.size) <= self.bytes.len();
        match is_inside && self.bytes.as_ptr().addr().is_multiple_of(self.size) {
            true => Ok(()),
            false => wrong(format!(
                "a copy reads elements {least} to {most} of {} bytes in {} bytes, or unaligned ones",
                self.size,
                self.bytes.len()
            )),
        }
    }

    /// Returns its dims, those that run through memory as one joined.
    fn dims(&self) -> Vec<Dim> {
        let mut dims: Vec<Dim> = Vec::new();
        for (size, stride) in self.shape.iter().copied().zip(self.strides.iter().copied()) {
            match dims.last_mut() {
                _ if size == 1 => {}
                Some((outer, apart)) if *apart == stride * size as isize => {
                    *outer *= size;
                    *apart = stride;
                }
                _ => dims.push((size, stride)),
            }
        }
        dims
    }
}

/// Calls with the type of elements of a size.
macro_rules! by_size {
    ($size:expr, $type:ident => $made:expr) => {
        match $size {
            1 => by_size!(@ $type, u8, $made),
            2 => by_size!(@ $type, u16, $made),
            4 => by_size!(@ $type, u32, $made),
            _ => by_size!(@ $type, u64, $made),
        }
    };
    (@ $type:ident, $of:ty, $made:expr) => {{
        type $type = $of;
        $made
    }};
}

/// Writes the elements of an array, in order, one after the other.
///
/// # Errors
/// [`RegionError::Memory`] if an element lies outside, or the result has another length.
///
/// ```
/// use burn_dist_kernels::region::{Array, copy};
/// let array = Array { bytes: &[1, 2, 3, 4, 5, 6], size: 1, offset: 0, shape: &[3, 2], strides: &[1, 3] };
/// let mut turned = vec![std::mem::MaybeUninit::uninit(); 6];
/// copy(&array, &mut turned)?;
/// // SAFETY: every byte is written.
/// let turned: Vec<u8> = turned.into_iter().map(|x| unsafe { x.assume_init() }).collect();
/// assert_eq!(turned, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), burn_dist_kernels::region::RegionError>(())
/// ```
pub fn copy(from: &Array<'_>, to: &mut [MaybeUninit<u8>]) -> Result<(), RegionError> {
    from.check()?;
    check_result(from.elements() * from.size, from.size, to)?;
    let streams = to.len() >= STREAM_MIN;
    by_size!(from.size, T => {
        share::<T>(bytemuck::cast_slice(from.bytes), from.offset as isize, &from.dims(), places_of(to), streams);
    });
    Ok(())
}

/// Writes arrays one behind the other along a dim.
///
/// # Errors
/// As [`copy`], and if arrays differ in another dim, or in the bytes of an element.
pub fn concat(
    parts: &[Array<'_>],
    dim: usize,
    to: &mut [MaybeUninit<u8>],
) -> Result<(), RegionError> {
    let Some(first) = parts.first() else {
        return check_result(0, 1, to);
    };
    for part in parts {
        part.check()?;
        let alike = part.shape.len() == first.shape.len()
            && dim < part.shape.len()
            && part
                .shape
                .iter()
                .zip(first.shape)
                .enumerate()
                .all(|(at, (one, other))| at == dim || one == other);
        if !alike || part.size != first.size {
            return Err(RegionError::Memory {
                what: format!(
                    "arrays {:?} and {:?} of {} and {} bytes an element are not alike but for dim {dim}",
                    first.shape, part.shape, first.size, part.size
                ),
            });
        }
    }
    let total = parts.iter().map(Array::elements).sum::<usize>() * first.size;
    check_result(total, first.size, to)?;
    let outer: usize = first.shape[..dim].iter().product();
    if total == 0 {
        return Ok(());
    }
    let streams = total >= STREAM_MIN;
    by_size!(first.size, T => {
        let to = places_of::<T>(to);
        let each = to.len() / outer;
        if outer == 1 {
            let mut rest = to;
            for part in parts {
                let (own, others) = rest.split_at_mut(part.elements());
                rest = others;
                let dims: Vec<Dim> = part.dims();
                share::<T>(bytemuck::cast_slice(part.bytes), part.offset as isize, &dims, own, streams);
            }
            return Ok(());
        }
        // One index of the dims before at a time.
        let one = |index: usize, to: &mut [MaybeUninit<T>]| {
            let mut rest = to;
            for part in parts {
                let (own, others) = rest.split_at_mut(part.elements() / outer);
                rest = others;
                let mut at = part.offset as isize;
                let mut index = index;
                for (size, stride) in part.shape[..dim].iter().zip(part.strides).rev() {
                    at += (index % size) as isize * stride;
                    index /= size;
                }
                let inner = Array { shape: &part.shape[dim..], strides: &part.strides[dim..], ..*part };
                block::<T>(bytemuck::cast_slice(part.bytes), at, &inner.dims(), own, streams);
            }
        };
        match total >= SHARED_MIN {
            true => {
                let at_once = (SHARED_MIN / 4 / (each * first.size)).max(1);
                to.par_chunks_exact_mut(each).with_min_len(at_once).enumerate().for_each(|(index, to)| one(index, to));
            }
            false => to.chunks_exact_mut(each).enumerate().for_each(|(index, to)| one(index, to)),
        }
    });
    stream::finish();
    Ok(())
}

/// Sets memory to zero.
pub fn zeros(to: &mut [MaybeUninit<u8>]) {
    let zero = MaybeUninit::new(0);
    match to.len() < SHARED_MIN {
        true => to.fill(zero),
        false => to
            .par_chunks_mut(SHARED_MIN)
            .for_each(|part| part.fill(zero)),
    }
}

fn check_result(bytes: usize, size: usize, to: &[MaybeUninit<u8>]) -> Result<(), RegionError> {
    match to.len() == bytes && to.as_ptr().addr().is_multiple_of(size) {
        true => Ok(()),
        false => Err(RegionError::Memory {
            what: format!(
                "the result of a copy has {} bytes, or lies unaligned, instead of {bytes} aligned ones",
                to.len()
            ),
        }),
    }
}

/// Copies on all threads: the first dims are shared out.
fn share<T: Pod + Send + Sync>(
    from: &[T],
    offset: isize,
    dims: &[Dim],
    to: &mut [MaybeUninit<T>],
    streams: bool,
) {
    let threads = rayon::current_num_threads();
    if size_of_val(to) < SHARED_MIN || threads == 1 || dims.is_empty() {
        block(from, offset, dims, to, streams);
        return stream::finish();
    }
    // The dims before `split` one index at a time, `split` itself in parts of whole blocks.
    let most = threads * 4;
    let mut split = 0;
    let mut before = 1;
    while split + 1 < dims.len() && before * dims[split].0.div_ceil(BLOCK) < most {
        before *= dims[split].0;
        split += 1;
    }
    let (size, stride) = dims[split];
    let parts = most.div_ceil(before).max(1);
    let part = size.div_ceil(parts).next_multiple_of(BLOCK).min(size);
    let inner: usize = dims[split + 1..].iter().map(|(size, _)| *size).product();
    let mut jobs: Vec<(isize, usize, &mut [MaybeUninit<T>])> = Vec::new();
    let mut rest = to;
    for index in 0..before {
        let mut at = offset;
        let mut index = index;
        for (size, stride) in dims[..split].iter().rev() {
            at += (index % size) as isize * stride;
            index /= size;
        }
        for first in (0..size).step_by(part) {
            let len = part.min(size - first);
            let (own, others) = rest.split_at_mut(len * inner);
            rest = others;
            jobs.push((at + first as isize * stride, len, own));
        }
    }
    jobs.into_par_iter().for_each_init(
        || dims[split..].to_vec(),
        |dims, (at, len, to)| {
            dims[0].0 = len;
            block(from, at, dims, to, streams);
            stream::finish();
        },
    );
}

/// Copies on this thread.
fn block<T: Pod>(
    from: &[T],
    offset: isize,
    dims: &[Dim],
    to: &mut [MaybeUninit<T>],
    streams: bool,
) {
    let Some(((len, last), outer)) = dims.split_last() else {
        to[0].write(from[offset as usize]);
        return;
    };
    if to.is_empty() {
        return;
    }
    let beside = match last {
        1 => None,
        _ => outer
            .iter()
            .rposition(|(size, stride)| *size > 1 && *stride == 1),
    };
    let Some(beside) = beside else {
        let mut rows = to.chunks_exact_mut(*len);
        return each_index(outer, offset, |at| {
            let row = rows.next().expect("a row for each index");
            match *last {
                1 if streams && len * size_of::<T>() >= RUN_MIN => {
                    let of = &from[at as usize..][..*len];
                    stream::write(bytes_of(row), bytemuck::cast_slice(of));
                }
                1 => {
                    row.write_copy_of_slice(&from[at as usize..][..*len]);
                }
                apart => {
                    for (index, to) in row.iter_mut().enumerate() {
                        to.write(from[(at + index as isize * apart) as usize]);
                    }
                }
            }
        });
    };
    // Places apart along the dim that runs through memory, and the dims that are gone through one by one.
    let apart: usize = dims[beside + 1..].iter().map(|(size, _)| *size).product();
    let many = dims[beside].0;
    let (before, between) = (&outer[..beside], &outer[beside + 1..]);
    let between_count: usize = between.iter().map(|(size, _)| *size).product();
    let matrix = Turn {
        from,
        from_apart: *last,
        to_apart: apart,
        rows: many,
        columns: *len,
        streams,
    };
    let mut outer_index = 0;
    each_index(before, offset, |at| {
        let mut between_index = 0;
        each_index(between, at, |at| {
            let first = outer_index * many * apart + between_index * len;
            matrix.copy(at, &mut to[first..]);
            between_index += 1;
        });
        debug_assert_eq!(between_index, between_count);
        outer_index += 1;
    });
}

/// Calls with the place of every index of some dims, in order.
fn each_index(dims: &[Dim], offset: isize, mut f: impl FnMut(isize)) {
    let mut index = vec![0; dims.len()];
    let total: usize = dims.iter().map(|(size, _)| *size).product();
    let mut at = offset;
    for _ in 0..total {
        f(at);
        for (index, (size, stride)) in index.iter_mut().zip(dims).rev() {
            *index += 1;
            at += stride;
            if *index < *size {
                break;
            }
            at -= stride * *size as isize;
            *index = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every element, one after the other.
    fn plain(array: &Array<'_>) -> Vec<u8> {
        let dims: Vec<Dim> = array
            .shape
            .iter()
            .copied()
            .zip(array.strides.iter().copied())
            .collect();
        let mut made = Vec::new();
        each_index(&dims, array.offset as isize, |at| {
            made.extend(&array.bytes[at as usize * array.size..][..array.size]);
        });
        made
    }

    fn made(len: usize, f: impl FnOnce(&mut [MaybeUninit<u8>])) -> Vec<u8> {
        let mut memory = vec![0u64; len.div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut memory)[..len];
        f(super::super::memory::places(bytes));
        bytes.to_vec()
    }

    /// Memory, sizes, strides and the first element of an array whose dims lie in any order, some of them backwards.
    fn arrays() -> impl Strategy<Value = (usize, Vec<usize>, Vec<usize>, u8)> {
        let sizes = prop::sample::select(vec![0usize, 1, 2, 3, 7, 31, 32, 33, 65]);
        let shapes = prop::collection::vec(sizes, 1..4);
        (
            prop::sample::select(vec![1usize, 2, 4, 8]),
            shapes,
            any::<u8>(),
        )
            .prop_flat_map(|(size, shape, backwards)| {
                let order: Vec<usize> = (0..shape.len()).collect();
                (
                    Just(size),
                    Just(shape),
                    Just(order).prop_shuffle(),
                    Just(backwards),
                )
            })
    }

    fn strides_of(shape: &[usize], order: &[usize], backwards: u8) -> (Vec<isize>, usize, usize) {
        let mut strides = vec![0isize; shape.len()];
        let (mut apart, mut first) = (1, 0);
        for dim in order {
            strides[*dim] = apart as isize;
            if backwards >> dim & 1 == 1 && backwards >> 6 == 0 {
                strides[*dim] = -strides[*dim];
                first += apart * shape[*dim].saturating_sub(1);
            }
            apart *= shape[*dim].max(1);
        }
        (strides, first, apart)
    }

    proptest! {
        #[test]
        fn any_order((size, shape, order, backwards) in arrays(), threads in 1usize..4) {
            let (strides, offset, len) = strides_of(&shape, &order, backwards);
            let memory: Vec<u64> = (0..(len * size).div_ceil(8) as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let array = Array { bytes: bytemuck::cast_slice(&memory), size, offset, shape: &shape, strides: &strides };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| made(array.elements() * size, |to| copy(&array, to).unwrap()));
            prop_assert!(found == plain(&array));
        }

        #[test]
        fn one_behind_the_other((size, shape, order, backwards) in arrays(), dim in 0usize..4, others in prop::collection::vec(0usize..40, 0..3)) {
            let dim = dim % shape.len();
            let mut shapes = vec![shape.clone()];
            shapes.extend(others.iter().map(|other| {
                let mut shape = shape.clone();
                shape[dim] = *other;
                shape
            }));
            let made_of: Vec<_> = shapes.iter().map(|shape| strides_of(shape, &order, backwards)).collect();
            let memories: Vec<Vec<u64>> = made_of
                .iter()
                .map(|(_, _, len)| (0..(len * size).div_ceil(8) as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect())
                .collect();
            let parts: Vec<Array<'_>> = shapes
                .iter()
                .zip(&made_of)
                .zip(&memories)
                .map(|((shape, (strides, offset, _)), memory)| Array {
                    bytes: bytemuck::cast_slice(memory),
                    size,
                    offset: *offset,
                    shape,
                    strides,
                })
                .collect();
            let outer: usize = shape[..dim].iter().product();
            let pieces: Vec<Vec<u8>> = parts.iter().map(plain).collect();
            let mut expected: Vec<u8> = Vec::new();
            for index in 0..outer {
                for piece in &pieces {
                    let each = piece.len() / outer;
                    expected.extend(&piece[index * each..][..each]);
                }
            }
            let found = made(expected.len(), |to| concat(&parts, dim, to).unwrap());
            prop_assert!(found == expected);
        }
    }

    #[test]
    fn what_lies_outside_is_an_error() {
        let memory = [0u32; 3];
        let array = Array {
            bytes: bytemuck::cast_slice(&memory),
            size: 4,
            offset: 0,
            shape: &[2, 2],
            strides: &[2, 1],
        };
        let error = made_error(&array, 16);
        assert!(matches!(error, RegionError::Memory { .. }), "{error}");
        let inside = Array {
            shape: &[2],
            strides: &[2],
            ..array
        };
        let error = made_error(&inside, 4);
        assert!(
            error.to_string().contains("instead of 8 aligned"),
            "{error}"
        );
    }

    fn made_error(array: &Array<'_>, len: usize) -> RegionError {
        let mut error = None;
        made(len, |to| error = copy(array, to).err());
        error.expect("an error")
    }
}
