//! Bools, and values that a bool chooses.

use burn_dist_plan::region::Binary;
use bytemuck::Pod;
use pulp::NullaryFnOnce;

use super::{Places, Source, map, zip_dense};
use crate::region::level::Level;

/// Functions of bools: bytes that are 0 or 1.
pub(in crate::region) fn binary_bool(op: Binary, to: Places<'_, u8>, left: &[u8], right: &[u8]) {
    match op {
        Binary::And | Binary::Min | Binary::Mul => zip_dense!(to, left, right, |x, y| x & y),
        Binary::Or | Binary::Max => zip_dense!(to, left, right, |x, y| x | y),
        Binary::Xor | Binary::NotEqual => zip_dense!(to, left, right, |x, y| x ^ y),
        Binary::Equal => zip_dense!(to, left, right, |x, y| (x ^ y) ^ 1),
        Binary::Less => zip_dense!(to, left, right, |x, y| (x ^ 1) & y),
        Binary::LessEqual => zip_dense!(to, left, right, |x, y| (x ^ 1) | y),
        Binary::Greater => zip_dense!(to, left, right, |x, y| x & (y ^ 1)),
        Binary::GreaterEqual => zip_dense!(to, left, right, |x, y| x | (y ^ 1)),
        other => unreachable!("{other:?} of bools"),
    }
}

/// The other bool.
pub(in crate::region) fn not(to: Places<'_, u8>, of: &[u8]) {
    map!(to, of, |x| x ^ 1);
}

/// One of two values, moved as bits.
pub(in crate::region) fn select<T: Pod>(
    level: Level,
    to: Places<'_, T>,
    mask: &[u8],
    on_true: Source<'_, T>,
    on_false: Source<'_, T>,
) {
    struct Select<'a, T>(Places<'a, T>, &'a [u8], Source<'a, T>, Source<'a, T>);
    impl<T: Pod> NullaryFnOnce for Select<'_, T> {
        type Output = ();
        #[inline(always)]
        fn call(self) {
            let Self(to, mask, on_true, on_false) = self;
            let places = to.iter_mut().zip(mask);
            match (on_true, on_false) {
                (Source::Dense(on_true), Source::Dense(on_false)) => {
                    for (((to, mask), x), y) in places.zip(on_true).zip(on_false) {
                        to.write(if *mask != 0 { *x } else { *y });
                    }
                }
                (Source::Dense(on_true), Source::One(y)) => {
                    for ((to, mask), x) in places.zip(on_true) {
                        to.write(if *mask != 0 { *x } else { y });
                    }
                }
                (Source::One(x), Source::Dense(on_false)) => {
                    for ((to, mask), y) in places.zip(on_false) {
                        to.write(if *mask != 0 { x } else { *y });
                    }
                }
                (Source::One(x), Source::One(y)) => {
                    for (to, mask) in places {
                        to.write(if *mask != 0 { x } else { y });
                    }
                }
            }
        }
    }
    level.run(Select(to, mask, on_true, on_false));
}
