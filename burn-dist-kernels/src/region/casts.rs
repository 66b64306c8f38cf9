//! Values in another type, and values from memory and to it.

use std::mem::MaybeUninit;

use pulp::NullaryFnOnce;

use super::halves::{Half, from_bf16, from_f16, rounded_bf16, rounded_f16, to_bf16, to_f16};
use super::level::Level;
use super::loops::Places;

/// Casts as Rust's `as` does: floats to integers saturate, NaN to zero; integers wrap.
pub(super) trait CastTo<B>: Copy {
    fn cast_to(self) -> B;
}

macro_rules! casts {
    ($($from:ty => $($to:ty),*;)*) => {
        $($(impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast_to(self) -> $to {
                self as $to
            }
        })*)*
    };
}
casts! {
    f32 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    f64 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    i8 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    i16 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    i32 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    i64 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    u8 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    u16 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    u32 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    u64 => f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
}

struct Cast<'a, A, B>(Places<'a, B>, &'a [A]);

impl<A: CastTo<B>, B> NullaryFnOnce for Cast<'_, A, B> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        for (to, x) in self.0.iter_mut().zip(self.1) {
            to.write(x.cast_to());
        }
    }
}

/// Casts between types that are computed in.
pub(super) fn cast<A: CastTo<B>, B>(level: Level, to: Places<'_, B>, of: &[A]) {
    level.run_narrow(Cast(to, of));
}

/// Writes whether each is not zero.
pub(super) fn is_nonzero<A: bytemuck::Pod + PartialEq>(to: Places<'_, u8>, of: &[A]) {
    let zero = A::zeroed();
    for (to, x) in to.iter_mut().zip(of) {
        to.write(u8::from(*x != zero));
    }
}

/// A loop of one function.
macro_rules! each {
    ($(#[$meta:meta])* $name:ident, $from:ty => $to:ty, $by_f16:expr, $by_bf16:expr) => {
        $(#[$meta])*
        pub(super) fn $name(level: Level, half: Half, to: Places<'_, $to>, of: &[$from]) {
            struct Each<'a>(Half, Places<'a, $to>, &'a [$from]);
            impl NullaryFnOnce for Each<'_> {
                type Output = ();
                #[inline(always)]
                fn call(self) {
                    match self.0 {
                        Half::F16 => {
                            for (to, x) in self.1.iter_mut().zip(self.2) {
                                to.write($by_f16(*x));
                            }
                        }
                        Half::BF16 => {
                            for (to, x) in self.1.iter_mut().zip(self.2) {
                                to.write($by_bf16(*x));
                            }
                        }
                    }
                }
            }
            level.run(Each(half, to, of));
        }
    };
}
each!(
    /// Reads floats of 16 bits.
    widen, u16 => f32, from_f16, from_bf16
);
each!(
    /// Writes floats as 16 bits.
    narrow, f32 => u16, to_f16, to_bf16
);

/// Rounds floats to 16 bits.
pub(super) fn round(level: Level, half: Half, values: &mut [f32]) {
    struct Round<'a>(Half, &'a mut [f32]);
    impl NullaryFnOnce for Round<'_> {
        type Output = ();
        #[inline(always)]
        fn call(self) {
            match self.0 {
                Half::F16 => self.1.iter_mut().for_each(|x| *x = rounded_f16(*x)),
                Half::BF16 => self.1.iter_mut().for_each(|x| *x = rounded_bf16(*x)),
            }
        }
    }
    level.run(Round(half, values));
}

/// Rounds f64 to 16 bits, once.
pub(super) fn round_double(half: Half, to: Places<'_, f32>, of: &[f64]) {
    for (to, x) in to.iter_mut().zip(of) {
        to.write(super::kind::half_of_double(*x, half));
    }
}

/// Writes values as they are.
pub(super) fn copy<T: Copy>(to: &mut [MaybeUninit<T>], of: &[T]) {
    to.write_copy_of_slice(of);
}
