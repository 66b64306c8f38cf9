//! The inner loops: strided copies, and reductions in a fixed order.
//!
//! An element of a reduction depends on the inputs' elements, in the order of the group, and on nothing else: not on
//! chunks, threads or timing. So reduce-scatter followed by all-gather equals all-reduce bit by bit; and one over
//! several axes, where the call says so, the reductions over each of them, the last one first.

use super::stream;
use crate::geometry::Move;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::{BoolStore, DType};
use half::{bf16, f16};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Elements reduced at a time: the accumulators stay in the first-level cache while the inputs stream by.
const BLOCK: usize = 2048;

/// Runs shorter than this are not streamed: they would leave partial lines in the write-combining buffers.
const STREAMED_RUN_MIN: usize = 1024;

/// Whether `op` is defined for `dtype`.
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
    /// What partial results are kept in: wider than the element where that saves roundings.
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
    /// Whether results go past the caches.
    pub(super) past_cache: bool,
}

/// Reduces the box `step` of all `srcs`, in their order, into the buffer at `dst`.
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
fn reduce_run<T: Element>(
    out: &mut [MaybeUninit<T>],
    srcs: &[&[T]],
    start: usize,
    how: &Reduction,
) {
    match (how.op, &how.axes[..]) {
        (ReduceOp::Sum, [_, _, ..]) => fold_axes(out, srcs, start, &how.axes, T::sum),
        (ReduceOp::Mean, axes @ [_, _, ..]) => fold_means(out, srcs, start, axes),
        (ReduceOp::Mean, _) => fold_means(out, srcs, start, &[srcs.len()]),
        (ReduceOp::Prod, [_, _, ..]) => fold_axes(out, srcs, start, &how.axes, T::prod),
        // The smallest and the largest are what they are in any order.
        (ReduceOp::Sum, _) => fold(out, srcs, start, T::sum),
        (ReduceOp::Min, _) => fold(out, srcs, start, T::min),
        (ReduceOp::Max, _) => fold(out, srcs, start, T::max),
        (ReduceOp::Prod, _) => fold(out, srcs, start, T::prod),
    }
}

/// Writes the means over each of `axes`, the last first: sums divided by the number of terms, or the term itself where
/// all terms are equal, which a rounded (or overflown) sum would not give.
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
        for (acc, &x) in acc.iter_mut().zip(&srcs[0][at..at + n]) {
            *acc = x.widen();
        }
        return;
    };
    let mut sum = [T::Wide::default(); BLOCK];
    let mut term = [T::Wide::default(); BLOCK];
    let mut are_equal = [true; BLOCK];
    for (index, srcs) in srcs.chunks(srcs.len() / size).enumerate() {
        fold_mean(&mut term[..n], srcs, at, inner);
        if index == 0 {
            acc.copy_from_slice(&term[..n]);
            sum = term;
            continue;
        }
        for i in 0..n {
            sum[i] = T::sum(sum[i], term[i]);
            are_equal[i] &= acc[i] == term[i];
        }
    }
    for i in 0..n {
        if !are_equal[i] {
            // As if the result had been handed to the ranks of the next axis.
            acc[i] = T::narrow(T::over(sum[i], size)).widen();
        }
    }
}

/// Writes what reducing over each of `axes`, the last first, gives.
fn fold_axes<T: Element>(
    out: &mut [MaybeUninit<T>],
    srcs: &[&[T]],
    start: usize,
    axes: &[usize],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
) {
    let mut acc = [T::Wide::default(); BLOCK];
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let acc = &mut acc[..out.len()];
        fold_axis(acc, srcs, start + index * BLOCK, axes, combine);
        for (out, &wide) in out.iter_mut().zip(acc.iter()) {
            out.write(T::narrow(wide));
        }
    }
}

/// The recursion of [`fold_axes`], over a block.
fn fold_axis<T: Element>(
    acc: &mut [T::Wide],
    srcs: &[&[T]],
    at: usize,
    axes: &[usize],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
) {
    let n = acc.len();
    let Some((&size, inner)) = axes.split_first() else {
        for (acc, &x) in acc.iter_mut().zip(&srcs[0][at..at + n]) {
            *acc = x.widen();
        }
        return;
    };
    let mut term = [T::Wide::default(); BLOCK];
    for (index, srcs) in srcs.chunks(srcs.len() / size).enumerate() {
        match (index, inner) {
            (0, _) => fold_axis(acc, srcs, at, inner, combine),
            (_, []) => {
                for (acc, &x) in acc.iter_mut().zip(&srcs[0][at..at + n]) {
                    *acc = combine(*acc, x.widen());
                }
            }
            _ => {
                let term = &mut term[..n];
                fold_axis(term, srcs, at, inner, combine);
                for (acc, &x) in acc.iter_mut().zip(term.iter()) {
                    *acc = combine(*acc, x);
                }
            }
        }
    }
    // As if the result had been handed to the ranks of the next axis.
    for acc in acc.iter_mut() {
        *acc = T::narrow(*acc).widen();
    }
}

#[inline(always)]
fn fold<T: Element>(
    out: &mut [MaybeUninit<T>],
    srcs: &[&[T]],
    start: usize,
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
) {
    let n = out.len();
    match *srcs {
        [a] => {
            for (out, &a) in out.iter_mut().zip(&a[start..start + n]) {
                out.write(T::narrow(a.widen()));
            }
        }
        [a, b] => {
            let (a, b) = (&a[start..start + n], &b[start..start + n]);
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                out.write(T::narrow(combine(a.widen(), b.widen())));
            }
        }
        [a, b, c, d] => {
            let (a, b, c, d) = (
                &a[start..start + n],
                &b[start..start + n],
                &c[start..start + n],
                &d[start..start + n],
            );
            for ((((out, &a), &b), &c), &d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                let wide = combine(combine(combine(a.widen(), b.widen()), c.widen()), d.widen());
                out.write(T::narrow(wide));
            }
        }
        _ => {
            let mut acc = [T::Wide::default(); BLOCK];
            for (index, out) in out.chunks_mut(BLOCK).enumerate() {
                let at = start + index * BLOCK;
                let acc = &mut acc[..out.len()];
                for (acc, &x) in acc.iter_mut().zip(&srcs[0][at..at + out.len()]) {
                    *acc = x.widen();
                }
                for src in &srcs[1..] {
                    for (acc, &x) in acc.iter_mut().zip(&src[at..at + out.len()]) {
                        *acc = combine(*acc, x.widen());
                    }
                }
                for (out, &wide) in out.iter_mut().zip(acc.iter()) {
                    out.write(T::narrow(wide));
                }
            }
        }
    }
}
