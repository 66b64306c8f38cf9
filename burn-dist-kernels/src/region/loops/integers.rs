//! Integers.

use burn_dist_plan::region::{Binary, Unary};
use pulp::NullaryFnOnce;

use super::{Numbers, Places, Source, compare, dense, map, zip_dense};
use crate::region::level::Level;

/// Loops of integers. As in Flex: sums, products and shifts wrap, powers take the exponent's low 32 bits. Where Flex
/// panics because a quotient is out of range (the least number by -1), it wraps.
macro_rules! integer {
    ($type:ty, $abs:expr, $sign:expr, $remainder:expr) => {
        impl Numbers for $type {
            const READS_ONE: bool = false;

            fn unary(level: Level, op: Unary, to: Places<'_, Self>, of: &[Self]) {
                struct Apply<'a>(Unary, Places<'a, $type>, &'a [$type]);
                impl NullaryFnOnce for Apply<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        let Self(op, to, of) = self;
                        match op {
                            Unary::Neg => map!(to, of, |x| x.wrapping_neg()),
                            Unary::Abs => map!(to, of, |x| $abs(x)),
                            Unary::Sign => map!(to, of, |x| $sign(x)),
                            Unary::Not => map!(to, of, |x| !x),
                            other => unreachable!("{other:?} of integers"),
                        }
                    }
                }
                level.run_narrow(Apply(op, to, of));
            }

            fn binary(
                level: Level,
                op: Binary,
                to: Places<'_, Self>,
                left: Source<'_, Self>,
                right: Source<'_, Self>,
            ) {
                struct Arithmetic<'a>(Binary, Places<'a, $type>, &'a [$type], &'a [$type]);
                impl NullaryFnOnce for Arithmetic<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        let Self(op, to, left, right) = self;
                        match op {
                            Binary::Add => zip_dense!(to, left, right, |x, y| x.wrapping_add(y)),
                            Binary::Sub => zip_dense!(to, left, right, |x, y| x.wrapping_sub(y)),
                            Binary::Mul => zip_dense!(to, left, right, |x, y| x.wrapping_mul(y)),
                            Binary::Min => zip_dense!(to, left, right, |x, y| x.min(y)),
                            Binary::Max => zip_dense!(to, left, right, |x, y| x.max(y)),
                            Binary::And => zip_dense!(to, left, right, |x, y| x & y),
                            Binary::Or => zip_dense!(to, left, right, |x, y| x | y),
                            Binary::Xor => zip_dense!(to, left, right, |x, y| x ^ y),
                            Binary::ShiftLeft => {
                                zip_dense!(to, left, right, |x, y| x.wrapping_shl(y as u32))
                            }
                            Binary::ShiftRight => {
                                zip_dense!(to, left, right, |x, y| x.wrapping_shr(y as u32))
                            }
                            other => unreachable!("{other:?} of integers"),
                        }
                    }
                }
                let (left, right) = dense(left, right);
                match op {
                    // Zero was looked for before.
                    Binary::Div => zip_dense!(to, left, right, |x, y| match y {
                        0 => 0,
                        _ => x.wrapping_div(y),
                    }),
                    Binary::Rem => zip_dense!(to, left, right, |x, y| match y {
                        0 => 0,
                        _ => $remainder(x, y),
                    }),
                    Binary::Pow => {
                        zip_dense!(to, left, right, |x, y| x.wrapping_pow(y as i64 as u32))
                    }
                    _ => level.run_narrow(Arithmetic(op, to, left, right)),
                }
            }

            compare!($type, zip_dense, run_narrow, dense);

            fn classify(_: Level, op: Unary, _: Places<'_, u8>, _: &[Self]) {
                unreachable!("{op:?} of integers")
            }
        }
    };
}

macro_rules! signed {
    ($($type:ty),*) => {
        $(integer!(
            $type,
            |x: $type| x.wrapping_abs(),
            |x: $type| x.signum(),
            |x: $type, y: $type| {
                let rest = x.wrapping_rem(y);
                if rest != 0 && (rest < 0) != (y < 0) { rest.wrapping_add(y) } else { rest }
            }
        );)*
    };
}
signed!(i8, i16, i32, i64);

macro_rules! unsigned {
    ($($type:ty),*) => {
        $(integer!($type, |x: $type| x, |x: $type| x.min(1), |x: $type, y: $type| x % y);)*
    };
}
unsigned!(u8, u16, u32, u64);
