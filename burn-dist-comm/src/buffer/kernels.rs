//! The inner loops: strided copies, and reductions in a fixed order.
//!
//! An element of a reduction depends on the inputs' elements and on the axes of the group, along each of which they are
//! added up as one balanced tree, and on nothing else: not on chunks, threads or timing. So reduce-scatter followed by
//! all-gather equals all-reduce bit by bit; and one over several axes, where the call says so, the reductions over each
//! of them, the last one first.

use super::stream;
use crate::geometry::Move;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::{BoolStore, DType};
use half::{bf16, f16};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// Elements reduced at a time: the accumulators stay in the first-level cache while the inputs stream by.
const BLOCK: usize = 2048;

/// Runs shorter than this are not streamed: they would leave partial lines in the write-combining buffers.
const STREAMED_RUN_MIN: usize = 1024;

/// Returns whether `op` is defined for `dtype`.
///
/// All of float (64, 32, 16, bf16) and integer types; booleans have Min and Max.
pub(crate) fn is_reducible(dtype: DType, op: ReduceOp) -> bool {
    match dtype {
        DType::Flex32 | DType::Quantized(_) => false,
        DType::Bool(_) => matches!(op, ReduceOp::Min | ReduceOp::Max),
        _ => true,
    }
}

/// Plain old data that a reduction works on.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub(super) unsafe trait Element: Copy + 'static {
    /// The type of partial results: wider than the element where that saves roundings.
    type Wide: Copy + Default + PartialEq + 'static;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn prod(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The smaller one; NaN if either is.
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The larger one; NaN if either is.
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The quotient by a number of members; integers round towards zero.
    fn over(a: Self::Wide, num_members: usize) -> Self::Wide;
}

macro_rules! float_element {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        // SAFETY: floats have neither padding nor invalid bit patterns.
        unsafe impl Element for $type {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            #[inline(always)]
            fn sum(a: $wide, b: $wide) -> $wide {
                a + b
            }
            #[inline(always)]
            fn prod(a: $wide, b: $wide) -> $wide {
                a * b
            }
            #[inline(always)]
            fn min(a: $wide, b: $wide) -> $wide {
                // A NaN in `b` fails the comparison and is taken; one in `a` is caught by the second condition.
                if a < b || a.is_nan() { a } else { b }
            }
            #[inline(always)]
            fn max(a: $wide, b: $wide) -> $wide {
                if a > b || a.is_nan() { a } else { b }
            }
            #[inline(always)]
            fn over(a: $wide, num_members: usize) -> $wide {
                a / num_members as $wide
            }
        }
    };
}

macro_rules! int_element {
    ($($type:ty),*) => {$(
        // SAFETY: integers have neither padding nor invalid bit patterns.
        unsafe impl Element for $type {
            type Wide = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(wide: $type) -> Self {
                wide
            }
            #[inline(always)]
            fn sum(a: $type, b: $type) -> $type {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn prod(a: $type, b: $type) -> $type {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn min(a: $type, b: $type) -> $type {
                Ord::min(a, b)
            }
            #[inline(always)]
            fn max(a: $type, b: $type) -> $type {
                Ord::max(a, b)
            }
            #[inline(always)]
            fn over(a: $type, num_members: usize) -> $type {
                // Through 128 bits: the number of members need not fit the type.
                (a as i128 / num_members as i128) as $type
            }
        }
    )*};
}

float_element!(f64, f64, |x| x, |x| x);
float_element!(f32, f32, |x| x, |x| x);
float_element!(f16, f32, f16::to_f32, f16::from_f32);
float_element!(bf16, f32, bf16::to_f32, bf16::from_f32);
int_element!(i8, i16, i32, i64, u8, u16, u32, u64);

/// Copies the box `step` from `src` to the buffer at `dst`; with `past_cache`, long runs go past the caches.
///
/// # Safety
/// `dst` is valid for writes of the bytes of `step` (of `dst_len` in all), and nobody else accesses these bytes during
/// the call.
pub(super) unsafe fn copy(step: &Move, src: &[u8], dst: *mut u8, dst_len: usize, past_cache: bool) {
    assert!(
        step.src_end() <= src.len() && step.dst_end() <= dst_len,
        "a move stays within its source and its output"
    );
    // SAFETY: in bounds, as just checked; the source is borrowed immutably and the caller owns the destination bytes.
    unsafe {
        let src = src.as_ptr();
        // Short runs are common when a trailing dim is gathered; a copy of constant size is a pair of instructions
        // instead of a call.
        match step.run {
            run if past_cache && run >= STREAMED_RUN_MIN => {
                copy_rows(step, |s, d| stream::copy(src.add(s), dst.add(d), run));
                stream::fence();
            }
            1 => copy_rows(step, |s, d| copy_const::<1>(src.add(s), dst.add(d))),
            2 => copy_rows(step, |s, d| copy_const::<2>(src.add(s), dst.add(d))),
            4 => copy_rows(step, |s, d| copy_const::<4>(src.add(s), dst.add(d))),
            8 => copy_rows(step, |s, d| copy_const::<8>(src.add(s), dst.add(d))),
            16 => copy_rows(step, |s, d| copy_const::<16>(src.add(s), dst.add(d))),
            32 => copy_rows(step, |s, d| copy_const::<32>(src.add(s), dst.add(d))),
            64 => copy_rows(step, |s, d| copy_const::<64>(src.add(s), dst.add(d))),
            run => copy_rows(step, |s, d| {
                std::ptr::copy_nonoverlapping(src.add(s), dst.add(d), run)
            }),
        }
    }
}

/// # Safety
/// As for `copy_nonoverlapping` of `N` bytes.
#[inline(always)]
unsafe fn copy_const<const N: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, N) }
}

/// Calls `row` with the source and destination offset of each run.
#[inline(always)]
fn copy_rows(step: &Move, mut row: impl FnMut(usize, usize)) {
    let [a, b, c] = step.loops;
    for i in 0..a.count {
        for j in 0..b.count {
            let mut s = step.src + i * a.src_stride + j * b.src_stride;
            let mut d = step.dst + i * a.dst_stride + j * b.dst_stride;
            for _ in 0..c.count {
                row(s, d);
                s += c.src_stride;
                d += c.dst_stride;
            }
        }
    }
}

/// How a reduction is written.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    /// Sizes of the axes that it follows, the first major; empty for one axis.
    pub(super) axes: Arc<[usize]>,
    /// True if results go past the caches.
    pub(super) past_cache: bool,
}

/// Reduces the box `step` of all `srcs`, axis by axis as balanced trees, into the buffer at `dst`.
///
/// # Safety
/// As for [`copy`]; moreover `dst` and all `srcs` are aligned to the elements of the dtype, and so are the offsets and
/// runs of `step`.
pub(super) unsafe fn reduce(
    step: &Move,
    srcs: &[&[u8]],
    dst: *mut u8,
    dst_len: usize,
    how: &Reduction,
) {
    assert!(
        step.dst_end() <= dst_len && srcs.iter().all(|src| step.src_end() <= src.len()),
        "a move stays within its sources and its output"
    );
    // SAFETY: handed on.
    unsafe {
        match how.dtype {
            DType::F64 => reduce_as::<f64>(step, srcs, dst, how),
            DType::F32 => reduce_as::<f32>(step, srcs, dst, how),
            DType::F16 => reduce_as::<f16>(step, srcs, dst, how),
            DType::BF16 => reduce_as::<bf16>(step, srcs, dst, how),
            DType::I64 => reduce_as::<i64>(step, srcs, dst, how),
            DType::I32 => reduce_as::<i32>(step, srcs, dst, how),
            DType::I16 => reduce_as::<i16>(step, srcs, dst, how),
            DType::I8 => reduce_as::<i8>(step, srcs, dst, how),
            DType::U64 => reduce_as::<u64>(step, srcs, dst, how),
            DType::U32 | DType::Bool(BoolStore::U32) => reduce_as::<u32>(step, srcs, dst, how),
            DType::U16 => reduce_as::<u16>(step, srcs, dst, how),
            DType::U8 | DType::Bool(BoolStore::Native | BoolStore::U8) => {
                reduce_as::<u8>(step, srcs, dst, how)
            }
            DType::Flex32 | DType::Quantized(_) => {
                unreachable!("a call with this dtype was refused when it was started")
            }
        }
    }
}

/// # Safety
/// As for [`reduce`], with the bounds checked.
unsafe fn reduce_as<T: Element>(step: &Move, srcs: &[&[u8]], dst: *mut u8, how: &Reduction) {
    let size = size_of::<T>();
    let typed: Vec<&[T]> = srcs
        .iter()
        .map(|src| {
            assert!(
                src.as_ptr().cast::<T>().is_aligned(),
                "inputs are aligned when they are deposited"
            );
            // SAFETY: aligned, as just checked; every bit pattern is an element.
            unsafe { std::slice::from_raw_parts(src.as_ptr().cast(), src.len() / size) }
        })
        .collect();
    let is_streamed = how.past_cache && step.run >= STREAMED_RUN_MIN;
    let mut block = [const { MaybeUninit::<T>::uninit() }; BLOCK];
    copy_rows(step, |s, d| {
        debug_assert!(
            s.is_multiple_of(size) && d.is_multiple_of(size) && step.run.is_multiple_of(size)
        );
        let (start, num) = (s / size, step.run / size);
        if !is_streamed {
            // SAFETY: in bounds and aligned, as the caller says, and owned by it during the call; the elements may be
            // uninitialised.
            let out =
                unsafe { std::slice::from_raw_parts_mut(dst.add(d).cast::<MaybeUninit<T>>(), num) };
            reduce_run(out, &typed, start, how);
            return;
        }
        for first in (0..num).step_by(BLOCK) {
            let part = &mut block[..BLOCK.min(num - first)];
            reduce_run(part, &typed, start + first, how);
            // SAFETY: the block has been written by the reduction; the destination as above.
            unsafe {
                stream::copy(
                    part.as_ptr().cast(),
                    dst.add(d + first * size),
                    size_of_val(part),
                )
            }
        }
    });
    if is_streamed {
        stream::fence();
    }
}

/// Writes the reduction of the elements from `start` of all `srcs` to all of `out`.
///
/// Terms are added axis by axis, the last axis first, each as a balanced tree over its index, split at the largest power
/// of two: `((0 + 1) + (2 + 3)) + (4 + 5)`. Every sum is rounded to the type of the elements, so that a reduction has
/// the same bits as several that follow each other over parts of its group.
fn reduce_run<T: Element>(
    out: &mut [MaybeUninit<T>],
    srcs: &[&[T]],
    start: usize,
    how: &Reduction,
) {
    let one = [srcs.len()];
    let axes = match &how.axes[..] {
        axes @ [_, _, ..] => axes,
        _ => &one,
    };
    match how.op {
        ReduceOp::Mean => fold_means(out, srcs, start, axes),
        ReduceOp::Sum => fold(out, srcs, start, axes, T::sum),
        ReduceOp::Prod => fold(out, srcs, start, axes, T::prod),
        // The smallest and the largest are what they are in any order.
        ReduceOp::Min => fold(out, srcs, start, &one, T::min),
        ReduceOp::Max => fold(out, srcs, start, &one, T::max),
    }
}

/// Combines `children` as a balanced tree, split at the largest power of two; `leaf` writes one of them.
fn tree<W: Copy + Default>(
    acc: &mut [W],
    children: Range<usize>,
    leaf: &mut dyn FnMut(usize, &mut [W]),
    combine: &impl Fn(W, W) -> W,
) {
    if children.len() < 2 {
        return leaf(children.start, acc);
    }
    let middle = children.start + children.len().next_power_of_two() / 2;
    tree(acc, children.start..middle, leaf, combine);
    let mut right = [W::default(); BLOCK];
    let right = &mut right[..acc.len()];
    tree(right, middle..children.end, leaf, combine);
    for (acc, &x) in acc.iter_mut().zip(right.iter()) {
        *acc = combine(*acc, x);
    }
}

/// Writes the means over each of `axes`, the last first: sums divided by the number of terms, or the term itself where
/// all terms are equal, which a rounded (or overflown) sum would not give. A mean is divided and rounded once per axis.
fn fold_means<T: Element>(out: &mut [MaybeUninit<T>], srcs: &[&[T]], start: usize, axes: &[usize]) {
    let mut acc = [T::Wide::default(); BLOCK];
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let acc = &mut acc[..out.len()];
        fold_mean(acc, srcs, start + index * BLOCK, axes);
        for (out, &wide) in out.iter_mut().zip(acc.iter()) {
            out.write(T::narrow(wide));
        }
    }
}

/// The recursion of [`fold_means`], over a block.
fn fold_mean<T: Element>(acc: &mut [T::Wide], srcs: &[&[T]], at: usize, axes: &[usize]) {
    let n = acc.len();
    let Some((&size, inner)) = axes.split_first() else {
        return load(acc, srcs[0], at);
    };
    let width = srcs.len() / size;
    let mut first = [T::Wide::default(); BLOCK];
    let mut are_equal = [true; BLOCK];
    let mut leaf = |child: usize, term: &mut [T::Wide]| {
        fold_mean(term, &srcs[child * width..(child + 1) * width], at, inner);
        match child {
            0 => first[..n].copy_from_slice(term),
            _ => {
                for i in 0..n {
                    are_equal[i] &= first[i] == term[i];
                }
            }
        }
    };
    tree(acc, 0..size, &mut leaf, &T::sum);
    for i in 0..n {
        acc[i] = match are_equal[i] {
            true => first[i],
            // As if the result had been handed to the ranks of the next axis.
            false => T::narrow(T::over(acc[i], size)).widen(),
        };
    }
}

/// Reads the elements from `at` on.
fn load<T: Element>(acc: &mut [T::Wide], src: &[T], at: usize) {
    let n = acc.len();
    for (acc, &x) in acc.iter_mut().zip(&src[at..at + n]) {
        *acc = x.widen();
    }
}

/// The recursion of [`fold`], over a block.
fn fold_axis<T: Element>(
    acc: &mut [T::Wide],
    srcs: &[&[T]],
    at: usize,
    axes: &[usize],
    combine: &impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    let Some((&size, inner)) = axes.split_first() else {
        return load(acc, srcs[0], at);
    };
    let width = srcs.len() / size;
    let mut leaf = |child: usize, term: &mut [T::Wide]| {
        let srcs = &srcs[child * width..(child + 1) * width];
        fold_axis(term, srcs, at, inner, combine);
    };
    tree(acc, 0..size, &mut leaf, combine);
}

/// Writes what combining over each of `axes`, the last first, gives.
#[inline(always)]
fn fold<T: Element>(
    out: &mut [MaybeUninit<T>],
    srcs: &[&[T]],
    start: usize,
    axes: &[usize],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    let n = out.len();
    let pair = |a: T::Wide, b: T::Wide| T::narrow(combine(a, b)).widen();
    match *srcs {
        [a] => {
            for (out, &a) in out.iter_mut().zip(&a[start..start + n]) {
                out.write(a);
            }
        }
        [a, b] => {
            let (a, b) = (&a[start..start + n], &b[start..start + n]);
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                out.write(T::narrow(combine(a.widen(), b.widen())));
            }
        }
        // Four in any axes are two pairs.
        [a, b, c, d] => {
            let (a, b, c, d) = (
                &a[start..start + n],
                &b[start..start + n],
                &c[start..start + n],
                &d[start..start + n],
            );
            for ((((out, &a), &b), &c), &d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                let wide = combine(pair(a.widen(), b.widen()), pair(c.widen(), d.widen()));
                out.write(T::narrow(wide));
            }
        }
        _ => {
            let mut acc = [T::Wide::default(); BLOCK];
            for (index, out) in out.chunks_mut(BLOCK).enumerate() {
                let acc = &mut acc[..out.len()];
                fold_axis(acc, srcs, start + index * BLOCK, axes, &pair);
                for (out, &wide) in out.iter_mut().zip(acc.iter()) {
                    out.write(T::narrow(wide));
                }
            }
        }
    }
}
