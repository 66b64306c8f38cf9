//! One instruction over many elements, for each type.

use std::mem::MaybeUninit;

use burn_dist_plan::region::{Binary, Unary};
use bytemuck::Pod;
use pulp::NullaryFnOnce;

use super::functions::{Double, Single};
use super::level::Level;

/// Where an instruction reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a, T> {
    /// A value for each element.
    Dense(&'a [T]),
    /// The same value for all.
    One(T),
}

pub(super) type Places<'a, T> = &'a mut [MaybeUninit<T>];

/// Writes what an expression gives for each element.
macro_rules! map {
    ($to:expr, $from:expr, |$x:ident| $made:expr) => {
        for (to, $x) in $to.iter_mut().zip($from) {
            let $x = *$x;
            to.write($made);
        }
    };
}

/// Writes what an expression gives for each pair.
macro_rules! zip {
    ($to:expr, $left:expr, $right:expr, |$x:ident, $y:ident| $made:expr) => {
        match ($left, $right) {
            (Source::Dense(left), Source::Dense(right)) => {
                for ((to, $x), $y) in $to.iter_mut().zip(left).zip(right) {
                    let ($x, $y) = (*$x, *$y);
                    to.write($made);
                }
            }
            (Source::Dense(left), Source::One($y)) => {
                for (to, $x) in $to.iter_mut().zip(left) {
                    let $x = *$x;
                    to.write($made);
                }
            }
            (Source::One($x), Source::Dense(right)) => {
                for (to, $y) in $to.iter_mut().zip(right) {
                    let $y = *$y;
                    to.write($made);
                }
            }
            (Source::One($x), Source::One($y)) => {
                let made = $made;
                for to in $to.iter_mut() {
                    to.write(made);
                }
            }
        }
    };
}

/// Writes what an expression gives for each pair, where both sides have a value for each element.
macro_rules! zip_dense {
    ($to:expr, $left:expr, $right:expr, |$x:ident, $y:ident| $made:expr) => {
        for ((to, $x), $y) in $to.iter_mut().zip($left).zip($right) {
            let ($x, $y) = (*$x, *$y);
            to.write($made);
        }
    };
}

/// A type with loops for each instruction.
pub(super) trait Numbers: Pod {
    /// True if loops read [one value](Source::One) for all elements; otherwise it is spread first.
    const READS_ONE: bool;

    /// A function of one element.
    fn unary(level: Level, op: Unary, to: Places<'_, Self>, of: &[Self]);
    /// A function of two elements that makes another of their type.
    fn binary(
        level: Level,
        op: Binary,
        to: Places<'_, Self>,
        left: Source<'_, Self>,
        right: Source<'_, Self>,
    );
    /// A comparison.
    fn compare(
        level: Level,
        op: Binary,
        to: Places<'_, u8>,
        left: Source<'_, Self>,
        right: Source<'_, Self>,
    );
    /// A question about an element: is it not a number, or infinite?
    fn classify(level: Level, op: Unary, to: Places<'_, u8>, of: &[Self]);
}

/// The larger of two floats, NaN if either is; of equal ones, which may be zeros of both signs, the second.
#[inline(always)]
pub(super) fn larger<T: PartialOrd + Copy>(x: T, y: T) -> T {
    // NaN is not equal to itself.
    #[allow(clippy::eq_op, reason = "it asks for NaN")]
    if x > y || x != x { x } else { y }
}

/// The smaller of two floats, NaN if either is; of equal ones the second.
#[inline(always)]
pub(super) fn smaller<T: PartialOrd + Copy>(x: T, y: T) -> T {
    #[allow(clippy::eq_op, reason = "it asks for NaN")]
    if x < y || x != x { x } else { y }
}

macro_rules! compare {
    ($type:ty, $zip:ident, $run:ident, $sides:ident) => {
        fn compare(
            level: Level,
            op: Binary,
            to: Places<'_, u8>,
            left: Source<'_, Self>,
            right: Source<'_, Self>,
        ) {
            struct Compare<'a>(Binary, Places<'a, u8>, Source<'a, $type>, Source<'a, $type>);
            impl NullaryFnOnce for Compare<'_> {
                type Output = ();
                #[inline(always)]
                fn call(self) {
                    let Self(op, to, left, right) = self;
                    let (left, right) = $sides(left, right);
                    match op {
                        Binary::Equal => $zip!(to, left, right, |x, y| u8::from(x == y)),
                        Binary::NotEqual => $zip!(to, left, right, |x, y| u8::from(x != y)),
                        Binary::Less => $zip!(to, left, right, |x, y| u8::from(x < y)),
                        Binary::LessEqual => $zip!(to, left, right, |x, y| u8::from(x <= y)),
                        Binary::Greater => $zip!(to, left, right, |x, y| u8::from(x > y)),
                        Binary::GreaterEqual => $zip!(to, left, right, |x, y| u8::from(x >= y)),
                        other => unreachable!("{other:?} is no comparison"),
                    }
                }
            }
            level.$run(Compare(op, to, left, right));
        }
    };
}

/// Both sides as they are.
#[inline(always)]
fn either<'a, T>(left: Source<'a, T>, right: Source<'a, T>) -> (Source<'a, T>, Source<'a, T>) {
    (left, right)
}

/// Both sides, which have a value for each element.
#[inline(always)]
fn dense<'a, T>(left: Source<'a, T>, right: Source<'a, T>) -> (&'a [T], &'a [T]) {
    match (left, right) {
        (Source::Dense(left), Source::Dense(right)) => (left, right),
        _ => unreachable!("values were spread"),
    }
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
            impl NullaryFnOnce for Apply<'_> {
                type Output = ();
                #[inline(always)]
                fn call(self) {
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
                        $(Unary::$function => map!(to, of, |x| Single::$name(x)),)*
                        other => unreachable!("{other:?} of floats"),
                    }
                }
            }
            if !Self::rare(op, to, of) {
                level.run(Apply(op, to, of));
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

trait Rare: Sized {
    /// Applies a function that has no loop in vectors, and returns whether this is one.
    fn rare(op: Unary, to: Places<'_, Self>, of: &[Self]) -> bool;
}

impl Rare for f32 {
    fn rare(op: Unary, to: Places<'_, Self>, of: &[Self]) -> bool {
        let has_large = || {
            of.iter()
                .any(|x| x.is_nan() || x.abs() >= Single::ANGLE_MAX)
        };
        match op {
            Unary::Sin | Unary::Cos | Unary::Tan if has_large() => {
                for (to, x) in to.iter_mut().zip(of) {
                    let is_small = x.abs() < Single::ANGLE_MAX;
                    to.write(match (op, is_small) {
                        (Unary::Sin, true) => Single::sin(*x),
                        (Unary::Sin, false) => Double::sin(f64::from(*x)) as f32,
                        (Unary::Cos, true) => Single::cos(*x),
                        (Unary::Cos, false) => Double::cos(f64::from(*x)) as f32,
                        (_, true) => Single::tan(*x),
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
        Single::pow,
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

/// Functions of bools: bytes that are 0 or 1.
pub(super) fn binary_bool(op: Binary, to: Places<'_, u8>, left: &[u8], right: &[u8]) {
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
pub(super) fn not(to: Places<'_, u8>, of: &[u8]) {
    map!(to, of, |x| x ^ 1);
}

/// One of two values, moved as bits.
pub(super) fn select<T: Pod>(
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

/// Elements of a block of [`pair`].
const BLOCK: usize = 64;

/// A value for each element, or the same for all, block by block.
struct Blocks<'a> {
    values: &'a [f32],
    /// Elements from a block to the next: none of the same value.
    apart: usize,
    rest: [f32; BLOCK],
}

impl<'a> Blocks<'a> {
    #[inline(always)]
    fn new(source: Source<'a, f32>, same: &'a mut [f32; BLOCK]) -> Self {
        match source {
            Source::Dense(values) => {
                let mut rest = [0.0; BLOCK];
                let left = values.len() % BLOCK;
                rest[..left].copy_from_slice(&values[values.len() - left..]);
                Self {
                    values,
                    apart: BLOCK,
                    rest,
                }
            }
            Source::One(value) => {
                *same = [value; BLOCK];
                Self {
                    values: same,
                    apart: 0,
                    rest: [value; BLOCK],
                }
            }
        }
    }

    #[inline(always)]
    fn block(&self, index: usize) -> &[f32; BLOCK] {
        let first = index * self.apart;
        self.values[first..first + BLOCK]
            .try_into()
            .expect("a block has its length")
    }
}

/// Two instructions of one loop, each rounded: `second(first(a, b), c)`, or with `c` on the left.
pub(super) fn pair(
    level: Level,
    ops: (Binary, Binary),
    is_left: bool,
    to: Places<'_, f32>,
    sources: [Source<'_, f32>; 3],
) {
    struct Pair<'a>(
        (Binary, Binary),
        bool,
        Places<'a, f32>,
        [Source<'a, f32>; 3],
    );
    #[inline(always)]
    fn each(
        to: &mut [MaybeUninit<f32>; BLOCK],
        a: &[f32; BLOCK],
        b: &[f32; BLOCK],
        c: &[f32; BLOCK],
        made: impl Fn(f32, f32, f32) -> f32,
    ) {
        for i in 0..BLOCK {
            to[i].write(made(a[i], b[i], c[i]));
        }
    }
    impl NullaryFnOnce for Pair<'_> {
        type Output = ();
        #[inline(always)]
        fn call(self) {
            let Self(ops, is_left, to, [a, b, c]) = self;
            let mut same = [[0.0; BLOCK]; 3];
            let [first, second, third] = &mut same;
            let (a, b, c) = (
                Blocks::new(a, first),
                Blocks::new(b, second),
                Blocks::new(c, third),
            );
            macro_rules! run {
                ($made:expr) => {{
                    let mut blocks = to.chunks_exact_mut(BLOCK);
                    for (index, to) in blocks.by_ref().enumerate() {
                        let to = to.try_into().expect("a block has its length");
                        each(to, a.block(index), b.block(index), c.block(index), $made);
                    }
                    let rest = blocks.into_remainder();
                    if !rest.is_empty() {
                        let mut last = [MaybeUninit::uninit(); BLOCK];
                        each(&mut last, &a.rest, &b.rest, &c.rest, $made);
                        rest.copy_from_slice(&last[..rest.len()]);
                    }
                }};
            }
            macro_rules! second {
                ($first:tt) => {
                    match (ops.1, is_left) {
                        (Binary::Add, _) => run!(|a: f32, b: f32, c: f32| (a $first b) + c),
                        (Binary::Mul, _) => run!(|a: f32, b: f32, c: f32| (a $first b) * c),
                        (Binary::Sub, false) => run!(|a: f32, b: f32, c: f32| (a $first b) - c),
                        (Binary::Sub, true) => run!(|a: f32, b: f32, c: f32| c - (a $first b)),
                        (Binary::Div, false) => run!(|a: f32, b: f32, c: f32| (a $first b) / c),
                        (Binary::Div, true) => run!(|a: f32, b: f32, c: f32| c / (a $first b)),
                        other => unreachable!("{other:?} in one loop with another"),
                    }
                };
            }
            match ops.0 {
                Binary::Add => second!(+),
                Binary::Sub => second!(-),
                Binary::Mul => second!(*),
                Binary::Div => second!(/),
                other => unreachable!("{other:?} in one loop with another"),
            }
        }
    }
    level.run(Pair(ops, is_left, to, sources));
}
