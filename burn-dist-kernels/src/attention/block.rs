//! Products of blocks, and the numbers that they are made of.

use std::mem::MaybeUninit;

use super::rows::Rows;
use super::view::Matrix;
use crate::region::{Double, Portable, Single};

/// A number that attention computes in.
pub trait Real: Rows + Copy + Send + Sync + PartialOrd + 'static {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The score of what is hidden.
    const HIDDEN: Self;

    /// The nearest one.
    fn of(number: f64) -> Self;
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The product.
    fn times(self, other: Self) -> Self;
    /// The natural logarithm.
    fn log(self) -> Self;
    /// The inverse.
    fn inverse(self) -> Self;
}

macro_rules! real {
    ($type:ty, $log:path) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HIDDEN: Self = Self::NEG_INFINITY;
            fn of(number: f64) -> Self {
                number as Self
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn log(self) -> Self {
                $log(self)
            }
            fn inverse(self) -> Self {
                self.recip()
            }
        }
    };
}
real!(f32, Single::<Portable>::log);
real!(f64, Double::log);

/// Memory of a result that nothing has written.
pub(super) type Places<'a, T> = &'a mut [MaybeUninit<T>];

/// Writes a number to all places. Memory of the system that is read before it is written is mapped twice.
pub(super) fn filled<T: Copy>(places: Places<'_, T>, number: T) -> &mut [T] {
    places.fill(MaybeUninit::new(number));
    // SAFETY: every place was just written.
    unsafe { places.assume_init_mut() }
}

/// Takes the first places out of a slice.
pub(super) fn next<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    rest.split_off_mut(..len).expect("places for all heads")
}

/// Writes `factor * a b` to rows of `out`, or adds it to them.
pub(super) fn product<T: Real>(
    out: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    factor: T,
    adds: bool,
) {
    let (rows, columns) = (a.rows, b.columns);
    assert_eq!(a.columns, b.rows, "inner sizes of a product");
    assert!(a.fits() && b.fits(), "a factor lies inside its data");
    assert!(out.len() >= rows * columns, "a product has room");
    if a.columns == 0 && !adds {
        return out[..rows * columns].fill(T::ZERO);
    }
    // SAFETY: all elements lie inside, as just checked; `out` is borrowed mutably, so nothing else writes or reads it.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            a.columns,
            out.as_mut_ptr(),
            1,
            columns as isize,
            adds,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            T::ONE,
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
