//! Rows and columns as one value, in one order.
//!
//! A row: lane i takes the elements i, i + 16, ... in order, beginning with the fold's neutral value; then lanes 8
//! apart are folded, 4, 2 and 1, the lower one on the left. The largest and the smallest have the same order.

use burn_dist_plan::region::{Fold, LANES_OF_A_SUM};
use bytemuck::Pod;
use pulp::NullaryFnOnce;

use super::level::Level;
use super::loops::{larger, smaller};

/// Lanes of a row.
pub(super) const LANES: usize = LANES_OF_A_SUM;

/// A type whose values fold.
pub(super) trait Folds: Pod {
    /// The value that changes nothing.
    fn neutral(fold: Fold) -> Self;
    /// Folds elements of a row, the first of which is in the first lane, into lanes.
    fn into_lanes(level: Level, fold: Fold, lanes: &mut [Self; LANES], elements: &[Self]);
    /// Folds two values.
    fn pair(fold: Fold, left: Self, right: Self) -> Self;
    /// Folds values into those that are there, each into its own.
    fn into_each(level: Level, fold: Fold, sums: &mut [Self], elements: &[Self]);

    /// Folds each of some rows.
    fn of_rows(level: Level, fold: Fold, to: &mut [Self], elements: &[Self], len: usize) {
        for (row, to) in to.iter_mut().enumerate() {
            let mut lanes = [Self::neutral(fold); LANES];
            Self::into_lanes(level, fold, &mut lanes, &elements[row * len..][..len]);
            *to = Self::of_lanes(fold, &lanes);
        }
    }

    /// Returns what lanes fold to.
    fn of_lanes(fold: Fold, lanes: &[Self; LANES]) -> Self {
        let mut lanes = *lanes;
        let mut apart = LANES / 2;
        while apart > 0 {
            for lane in 0..apart {
                lanes[lane] = Self::pair(fold, lanes[lane], lanes[lane + apart]);
            }
            apart /= 2;
        }
        lanes[0]
    }
}

/// The bound of integers.
macro_rules! whole_bound {
    ($lanes:expr, $elements:expr, $fold:ident, $order:tt, $pair:expr) => {
        $fold!($pair)
    };
}

/// The bound of floats: NaN is looked for first, so that a lane waits for one instruction and not for three.
macro_rules! float_bound {
    ($lanes:expr, $elements:expr, $fold:ident, $order:tt, $pair:expr) => {{
        let mut nans = 0;
        for x in $elements {
            nans |= u32::from(x.is_nan());
        }
        for x in $lanes.iter() {
            nans |= u32::from(x.is_nan());
        }
        match nans {
            1 => $fold!($pair),
            _ => $fold!(|x, y| if x $order y { x } else { y }),
        }
    }};
}

macro_rules! folds {
    ($type:ty, $run:ident, $least:expr, $largest:expr, $add:expr, $mul:expr, $max:expr, $min:expr, $bound:ident) => {
        impl Folds for $type {
            fn neutral(fold: Fold) -> Self {
                match fold {
                    Fold::Sum => 0 as $type,
                    Fold::Prod => 1 as $type,
                    Fold::Max => $least,
                    Fold::Min => $largest,
                }
            }

            #[inline(always)]
            fn pair(fold: Fold, left: Self, right: Self) -> Self {
                match fold {
                    Fold::Sum => $add(left, right),
                    Fold::Prod => $mul(left, right),
                    Fold::Max => $max(left, right),
                    Fold::Min => $min(left, right),
                }
            }

            fn into_lanes(level: Level, fold: Fold, lanes: &mut [Self; LANES], elements: &[Self]) {
                struct Lanes<'a>(Fold, &'a mut [$type; LANES], &'a [$type]);
                impl NullaryFnOnce for Lanes<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        macro_rules! fold {
                            ($pair:expr) => {{
                                let mut lanes = *self.1;
                                let whole = self.2.chunks_exact(LANES);
                                let rest = whole.remainder();
                                for chunk in whole {
                                    for lane in 0..LANES {
                                        lanes[lane] = $pair(lanes[lane], chunk[lane]);
                                    }
                                }
                                for (lane, x) in lanes.iter_mut().zip(rest) {
                                    *lane = $pair(*lane, *x);
                                }
                                *self.1 = lanes;
                            }};
                        }
                        match self.0 {
                            Fold::Sum => fold!($add),
                            Fold::Prod => fold!($mul),
                            Fold::Max => $bound!(self.1, self.2, fold, >, $max),
                            Fold::Min => $bound!(self.1, self.2, fold, <, $min),
                        }
                    }
                }
                level.$run(Lanes(fold, lanes, elements));
            }

            fn into_each(level: Level, fold: Fold, sums: &mut [Self], elements: &[Self]) {
                struct Each<'a>(Fold, &'a mut [$type], &'a [$type]);
                impl NullaryFnOnce for Each<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        macro_rules! fold {
                            ($pair:expr) => {
                                for (sum, x) in self.1.iter_mut().zip(self.2) {
                                    *sum = $pair(*sum, *x);
                                }
                            };
                        }
                        match self.0 {
                            Fold::Sum => fold!($add),
                            Fold::Prod => fold!($mul),
                            Fold::Max => fold!($max),
                            Fold::Min => fold!($min),
                        }
                    }
                }
                level.$run(Each(fold, sums, elements));
            }
        }
    };
}

macro_rules! float_folds {
    ($($type:ty: $run:ident),*) => {
        $(folds!(
            $type,
            $run,
            <$type>::NEG_INFINITY,
            <$type>::INFINITY,
            std::ops::Add::add,
            std::ops::Mul::mul,
            larger,
            smaller,
            float_bound
        );)*
    };
}
float_folds!(f32: run, f64: run);

macro_rules! integer_folds {
    ($($type:ty),*) => {
        $(folds!(
            $type,
            run_narrow,
            <$type>::MIN,
            <$type>::MAX,
            <$type>::wrapping_add,
            <$type>::wrapping_mul,
            Ord::max,
            Ord::min,
            whole_bound
        );)*
    };
}
integer_folds!(i8, i16, i32, i64, u8, u16, u32, u64);
