//! Floats.

use burn_dist_plan::region::{Binary, Unary};
use pulp::NullaryFnOnce;

use super::{Numbers, Places, Source, compare, dense, either, map, zip, zip_dense};
use crate::region::functions::{Double, Instructions, Portable, Single};
use crate::region::level::{Level, Loop};

/// The larger of two floats, NaN if either is; of equal ones, which may be zeros of both signs, the second.
#[inline(always)]
pub(in crate::region) fn larger<T: PartialOrd + Copy>(x: T, y: T) -> T {
    // NaN is not equal to itself.
    #[allow(clippy::eq_op, reason = "it asks for NaN")]
    if x > y || x != x { x } else { y }
}

/// The smaller of two floats, NaN if either is; of equal ones the second.
#[inline(always)]
pub(in crate::region) fn smaller<T: PartialOrd + Copy>(x: T, y: T) -> T {
    #[allow(clippy::eq_op, reason = "it asks for NaN")]
    if x < y || x != x { x } else { y }
}

/// The remainder that has the sign of the divisor, as Flex has it.
macro_rules! float_remainder {
    ($x:expr, $y:expr) => {{
        let rest = $x % $y;
        if rest != 0.0 && (rest < 0.0) != ($y < 0.0) {
            rest + $y
        } else {
            rest
        }
    }};
}

macro_rules! arithmetic {
    ($type:ty, $zip:ident, $sides:ident, $pow:path, $atan2:expr) => {
        fn binary(
            level: Level,
            op: Binary,
            to: Places<'_, Self>,
            left: Source<'_, Self>,
            right: Source<'_, Self>,
        ) {
            struct Arithmetic<'a>(
                Binary,
                Places<'a, $type>,
                Source<'a, $type>,
                Source<'a, $type>,
            );
            impl NullaryFnOnce for Arithmetic<'_> {
                type Output = ();
                #[inline(always)]
                fn call(self) {
                    let Self(op, to, left, right) = self;
                    let (left, right) = $sides(left, right);
                    match op {
                        Binary::Add => $zip!(to, left, right, |x, y| x + y),
                        Binary::Sub => $zip!(to, left, right, |x, y| x - y),
                        Binary::Mul => $zip!(to, left, right, |x, y| x * y),
                        Binary::Div => $zip!(to, left, right, |x, y| x / y),
                        Binary::Min => $zip!(to, left, right, |x, y| smaller(x, y)),
                        Binary::Max => $zip!(to, left, right, |x, y| larger(x, y)),
                        Binary::Pow => $zip!(to, left, right, |x, y| $pow(x, y)),
                        other => unreachable!("{other:?} of floats"),
                    }
                }
            }
            match op {
                Binary::Rem => zip!(to, left, right, |x, y| float_remainder!(x, y)),
                Binary::ArcTan2 => zip!(to, left, right, |x, y| $atan2(x, y)),
                _ => level.run(Arithmetic(op, to, left, right)),
            }
        }
    };
}

macro_rules! plain_float_unary {
    ($type:ty, $($function:ident: $name:ident),*) => {
        fn unary(level: Level, op: Unary, to: Places<'_, Self>, of: &[Self]) {
            struct Apply<'a>(Unary, Places<'a, $type>, &'a [$type]);
            impl Loop for Apply<'_> {
                type Output = ();
                #[inline(always)]
                fn call<I: Instructions>(self) {
                    let Self(op, to, of) = self;
                    match op {
                        Unary::Neg => map!(to, of, |x| -x),
                        Unary::Abs => map!(to, of, |x| x.abs()),
                        Unary::Sign => map!(to, of, |x| {
                            let above = if x > 0.0 { 1.0 } else { 0.0 };
                            if x < 0.0 { -1.0 } else { above }
                        }),
                        Unary::Sqrt => map!(to, of, |x| x.sqrt()),
                        Unary::Recip => map!(to, of, |x| 1.0 / x),
                        Unary::Round => map!(to, of, |x| x.round_ties_even()),
                        Unary::Floor => map!(to, of, |x| x.floor()),
                        Unary::Ceil => map!(to, of, |x| x.ceil()),
                        Unary::Trunc => map!(to, of, |x| x.trunc()),
                        $(Unary::$function => map!(to, of, |x| Single::<I>::$name(x)),)*
                        other => unreachable!("{other:?} of floats"),
                    }
                }
            }
            if !Self::rare(op, to, of) {
                level.run_fused(Apply(op, to, of));
            }
        }

        fn classify(level: Level, op: Unary, to: Places<'_, u8>, of: &[Self]) {
            struct Classify<'a>(Unary, Places<'a, u8>, &'a [$type]);
            impl NullaryFnOnce for Classify<'_> {
                type Output = ();
                #[inline(always)]
                fn call(self) {
                    let Self(op, to, of) = self;
                    match op {
                        Unary::IsNan => map!(to, of, |x| u8::from(x.is_nan())),
                        Unary::IsInf => map!(to, of, |x| u8::from(x.is_infinite())),
                        other => unreachable!("{other:?} makes no bool"),
                    }
                }
            }
            level.run(Classify(op, to, of));
        }
    };
}

/// Functions one number at a time, in f64.
macro_rules! rare {
    ($to:expr, $op:expr, $of:expr, $type:ty, $($function:ident: $name:ident),*) => {
        match $op {
            $(Unary::$function => {
                map!($to, $of, |x| Double::$name(f64::from(x)) as $type);
                true
            })*
            _ => false,
        }
    };
}

/// Functions of f32 that are computed in f64, without fused multiply-add.
type Wide = Single<Portable>;

trait Rare: Sized {
    /// Applies a function that has no loop in vectors, and returns whether this is one.
    fn rare(op: Unary, to: Places<'_, Self>, of: &[Self]) -> bool;
}

impl Rare for f32 {
    fn rare(op: Unary, to: Places<'_, Self>, of: &[Self]) -> bool {
        let has_large = || of.iter().any(|x| x.is_nan() || x.abs() >= Wide::ANGLE_MAX);
        match op {
            Unary::Sin | Unary::Cos | Unary::Tan if has_large() => {
                for (to, x) in to.iter_mut().zip(of) {
                    let is_small = x.abs() < Wide::ANGLE_MAX;
                    to.write(match (op, is_small) {
                        (Unary::Sin, true) => Wide::sin(*x),
                        (Unary::Sin, false) => Double::sin(f64::from(*x)) as f32,
                        (Unary::Cos, true) => Wide::cos(*x),
                        (Unary::Cos, false) => Double::cos(f64::from(*x)) as f32,
                        (_, true) => Wide::tan(*x),
                        (_, false) => Double::tan(f64::from(*x)) as f32,
                    });
                }
                true
            }
            _ => rare!(
                to, op, of, f32, Sinh: sinh, Cosh: cosh, ArcSin: asin, ArcCos: acos, ArcTan: atan, ArcSinh: asinh,
                ArcCosh: acosh, ArcTanh: atanh
            ),
        }
    }
}

impl Rare for f64 {
    fn rare(op: Unary, to: Places<'_, Self>, of: &[Self]) -> bool {
        rare!(
            to, op, of, f64, Exp: exp, Log: log, Log1p: log1p, Sin: sin, Cos: cos, Tan: tan, Sinh: sinh, Cosh: cosh,
            Tanh: tanh, ArcSin: asin, ArcCos: acos, ArcTan: atan, ArcSinh: asinh, ArcCosh: acosh, ArcTanh: atanh,
            Erf: erf, Sigmoid: sigmoid
        )
    }
}

impl Numbers for f32 {
    const READS_ONE: bool = true;
    arithmetic!(
        f32,
        zip,
        either,
        Wide::pow,
        |x, y| Double::atan2(f64::from(x), f64::from(y)) as f32
    );
    compare!(f32, zip, run, either);
    plain_float_unary!(
        f32, Exp: exp, Log: log, Log1p: log1p, Sin: sin, Cos: cos, Tan: tan, Tanh: tanh, Erf: erf, Sigmoid: sigmoid
    );
}

impl Numbers for f64 {
    const READS_ONE: bool = false;
    arithmetic!(f64, zip_dense, dense, Double::pow, Double::atan2);
    compare!(f64, zip_dense, run, dense);
    plain_float_unary!(f64,);
}
