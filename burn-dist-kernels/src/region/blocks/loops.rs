//! Instructions over a block.

use std::mem::MaybeUninit;

use burn_dist_plan::region::{Binary, Fold, LANES_OF_A_SUM, Unary};

use super::code::{BLOCK, Make};
use crate::region::functions::{Instructions, Single};
use crate::region::halves::{Half, rounded_bf16, rounded_f16};
use crate::region::loops::{larger, smaller};
use crate::region::stream;

/// Lanes of a fold.
pub(super) const LANES: usize = LANES_OF_A_SUM;

type Block = [f32; BLOCK];
type Places = [MaybeUninit<f32>; BLOCK];

/// The lanes of a fold.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Lanes {
    pub values: [f32; LANES],
    /// The bits of the largest magnitudes that a bound has seen.
    magnitudes: [u32; LANES],
}

impl Lanes {
    pub(super) fn new(values: [f32; LANES]) -> Self {
        let magnitudes = values.map(magnitude);
        Self { values, magnitudes }
    }

    /// Returns what is folded, NaN where there was one.
    pub(super) fn with_nans(&self) -> [f32; LANES] {
        let mut values = self.values;
        for (value, magnitude) in values.iter_mut().zip(self.magnitudes) {
            if magnitude > f32::INFINITY.to_bits() {
                *value = f32::NAN;
            }
        }
        values
    }
}

/// Where a block begins, at the first element of a row's and from there on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub first: *mut f32,
    /// All bits of the elements before a block: none where all blocks are one.
    pub moves: usize,
}

impl Span {
    /// A block that is the same for all.
    pub(super) fn still(first: *mut f32) -> Self {
        Self { first, moves: 0 }
    }

    /// Elements one after the other.
    pub(super) fn moving(first: *mut f32) -> Self {
        Self {
            first,
            moves: usize::MAX,
        }
    }

    /// Returns where the block is that comes after some elements.
    #[inline(always)]
    pub(super) fn at(self, elements: usize) -> *mut f32 {
        self.first.wrapping_add(elements & self.moves)
    }
}

/// An instruction, and where its blocks are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub make: Make,
    pub reads: [Span; 3],
    pub to: Span,
}

/// Returns whether a function has a loop here.
pub(super) fn has_unary(op: Unary) -> bool {
    use Unary::*;
    matches!(
        op,
        Neg | Abs
            | Sign
            | Exp
            | Log
            | Log1p
            | Sqrt
            | Recip
            | Tanh
            | Erf
            | Sigmoid
            | Round
            | Floor
            | Ceil
            | Trunc
    )
}

/// Returns whether a function of two has a loop here.
pub(super) fn has_binary(op: Binary) -> bool {
    use Binary::*;
    matches!(op, Add | Sub | Mul | Div | Min | Max)
}

#[inline(always)]
fn one(to: &mut Places, x: &Block, made: impl Fn(f32) -> f32) {
    for i in 0..BLOCK {
        to[i].write(made(x[i]));
    }
}

#[inline(always)]
fn two(to: &mut Places, x: &Block, y: &Block, made: impl Fn(f32, f32) -> f32) {
    for i in 0..BLOCK {
        to[i].write(made(x[i], y[i]));
    }
}

#[inline(always)]
fn three(to: &mut Places, x: &Block, y: &Block, z: &Block, made: impl Fn(f32, f32, f32) -> f32) {
    for i in 0..BLOCK {
        to[i].write(made(x[i], y[i], z[i]));
    }
}

/// Folds a block into those values that are there.
#[inline(always)]
fn each(to: &mut Block, x: &Block, made: impl Fn(f32, f32) -> f32) {
    for i in 0..BLOCK {
        to[i] = made(to[i], x[i]);
    }
}

#[inline(always)]
fn lanes(to: &mut [f32; LANES], x: &Block, made: impl Fn(f32, f32) -> f32) {
    let mut lanes = *to;
    for part in 0..BLOCK / LANES {
        for lane in 0..LANES {
            lanes[lane] = made(lanes[lane], x[part * LANES + lane]);
        }
    }
    *to = lanes;
}

/// All bits but the sign: those of a NaN are above those of infinity.
#[inline(always)]
fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// The largest or smallest of numbers, and beside it the largest magnitude, by which [`Lanes::with_nans`] finds where
/// there was a NaN: so a comparison is one instruction and not three. Of equal numbers the later one stays, whichever
/// are compared first: four numbers of a lane are compared before the lane waits for them.
#[inline(always)]
fn bounds(to: &mut Lanes, x: &Block, made: impl Fn(f32, f32) -> f32) {
    const {
        assert!(BLOCK.is_multiple_of(4 * LANES));
    }
    let Lanes {
        mut values,
        mut magnitudes,
    } = *to;
    for four in 0..BLOCK / LANES / 4 {
        for lane in 0..LANES {
            let x = |part: usize| x[(four * 4 + part) * LANES + lane];
            let found = made(made(x(0), x(1)), made(x(2), x(3)));
            values[lane] = made(values[lane], found);
            let found = |part: usize| magnitude(x(part)).max(magnitude(x(part + 1)));
            magnitudes[lane] = magnitudes[lane].max(found(0).max(found(2)));
        }
    }
    *to = Lanes { values, magnitudes };
}

/// Divisors of which quotients are found by the inverse, and the numbers whose quotients by them are: quotients and
/// what they leave are normal numbers then.
const DIVISORS: std::ops::RangeInclusive<f32> = 5.960_464_5e-8..=16_777_216.0;
const DIVIDENDS: std::ops::RangeInclusive<f32> = 7.888_609e-31..=1.267_650_6e30;

/// Returns the inverse of a divisor; NaN if quotients are not found by it.
pub(super) fn inverse(of: f32) -> f32 {
    match DIVISORS.contains(&of.abs()) {
        true => 1.0 / of,
        false => f32::NAN,
    }
}

/// Quotients by one number. Where a product and a sum are rounded once by an instruction, they are found by the
/// inverse: the quotient by it is off by less than two units, and what it leaves is exact, so that it is rounded once
/// in the end. That takes a fraction of the time of the processor's quotients, which are the same numbers.
///
/// # Source
/// Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM Journal of Research and
/// Development 34 (1990), theorem 8.3; Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point
/// division when the divisor is known in advance", IEEE Transactions on Computers 53 (2004).
#[inline(always)]
fn quotients<I: Instructions>(to: &mut Places, x: &Block, y: &Block, inverse: &Block) {
    let (divisor, inverse) = (y[0], inverse[0]);
    let mut are_near = I::FUSES && !inverse.is_nan();
    if are_near {
        // One less: zero, whose quotient is exact, is the largest.
        let (mut smallest, mut largest) = (u32::MAX, 0);
        for i in 0..BLOCK {
            let quotient = x[i] * inverse;
            let left = I::fused(-quotient, divisor, x[i]);
            // Of zero what is left has lost the sign.
            to[i].write(I::fused(left, inverse, quotient).copysign(quotient));
            smallest = smallest.min(magnitude(x[i]).wrapping_sub(1));
            largest = largest.max(magnitude(x[i]));
        }
        are_near =
            smallest >= DIVIDENDS.start().to_bits() - 1 && largest <= DIVIDENDS.end().to_bits();
    }
    if !are_near {
        one(to, x, |x| x / divisor);
    }
}

#[inline(always)]
fn products(to: &mut [f32; LANES], x: &Block, y: &Block) {
    let mut lanes = *to;
    for part in 0..BLOCK / LANES {
        for lane in 0..LANES {
            lanes[lane] += x[part * LANES + lane] * y[part * LANES + lane];
        }
    }
    *to = lanes;
}

/// Adds products, each rounded, to the sums that are there.
#[inline(always)]
fn each_product(to: &mut Block, x: &Block, y: &Block) {
    for i in 0..BLOCK {
        to[i] += x[i] * y[i];
    }
}

impl Ready {
    /// Runs it over the block that comes after some elements.
    ///
    /// # Safety
    /// What it reads has a block there, or for a fold or a sum lanes or a block, whose elements are written; it writes
    /// to another, which nothing else reads or writes meanwhile.
    #[inline(always)]
    pub(super) unsafe fn run<I: Instructions>(&self, elements: usize) {
        let [x, y, z] = self.reads;
        // SAFETY: as the caller says; only what an instruction reads is looked at.
        let (x, y, z) = unsafe {
            (
                &*x.at(elements).cast::<Block>(),
                y.at(elements).cast::<Block>(),
                z.at(elements).cast::<Block>(),
            )
        };
        let to = self.to.at(elements);
        macro_rules! y {
            () => {
                // SAFETY: the instruction reads two blocks.
                unsafe { &*y }
            };
        }
        macro_rules! z {
            () => {
                // SAFETY: the instruction reads three blocks.
                unsafe { &*z }
            };
        }
        macro_rules! to {
            ($type:ty) => {
                // SAFETY: what it writes is of this type, and of nobody else.
                unsafe { &mut *to.cast::<$type>() }
            };
        }
        macro_rules! second {
            ($first:tt, $second:expr, $is_left:expr) => {
                match ($second, $is_left) {
                    (Binary::Add, _) => three(to!(Places), x, y!(), z!(), |x, y, z| (x $first y) + z),
                    (Binary::Mul, _) => three(to!(Places), x, y!(), z!(), |x, y, z| (x $first y) * z),
                    (Binary::Sub, false) => three(to!(Places), x, y!(), z!(), |x, y, z| (x $first y) - z),
                    (Binary::Sub, true) => three(to!(Places), x, y!(), z!(), |x, y, z| z - (x $first y)),
                    (Binary::Div, false) => three(to!(Places), x, y!(), z!(), |x, y, z| (x $first y) / z),
                    (Binary::Div, true) => three(to!(Places), x, y!(), z!(), |x, y, z| z / (x $first y)),
                    other => unreachable!("{other:?} in one loop with another"),
                }
            };
        }
        match self.make {
            Make::Copy => one(to!(Places), x, |x| x),
            Make::Stream => stream::write_block::<I, BLOCK>(to!(Places), x),
            Make::Unary(op) => match op {
                Unary::Neg => one(to!(Places), x, |x| -x),
                Unary::Abs => one(to!(Places), x, f32::abs),
                Unary::Sign => one(to!(Places), x, |x| {
                    let above = if x > 0.0 { 1.0 } else { 0.0 };
                    if x < 0.0 { -1.0 } else { above }
                }),
                Unary::Sqrt => one(to!(Places), x, f32::sqrt),
                Unary::Recip => one(to!(Places), x, |x| 1.0 / x),
                Unary::Round => one(to!(Places), x, f32::round_ties_even),
                Unary::Floor => one(to!(Places), x, f32::floor),
                Unary::Ceil => one(to!(Places), x, f32::ceil),
                Unary::Trunc => one(to!(Places), x, f32::trunc),
                Unary::Exp => one(to!(Places), x, Single::<I>::exp),
                Unary::Log => one(to!(Places), x, Single::<I>::log),
                Unary::Log1p => one(to!(Places), x, Single::<I>::log1p),
                Unary::Tanh => one(to!(Places), x, Single::<I>::tanh),
                Unary::Erf => one(to!(Places), x, Single::<I>::erf),
                Unary::Sigmoid => one(to!(Places), x, Single::<I>::sigmoid),
                other => unreachable!("{other:?} in blocks"),
            },
            Make::Binary(op) => match op {
                Binary::Add => two(to!(Places), x, y!(), |x, y| x + y),
                Binary::Sub => two(to!(Places), x, y!(), |x, y| x - y),
                Binary::Mul => two(to!(Places), x, y!(), |x, y| x * y),
                Binary::Div => two(to!(Places), x, y!(), |x, y| x / y),
                Binary::Min => two(to!(Places), x, y!(), smaller),
                Binary::Max => two(to!(Places), x, y!(), larger),
                other => unreachable!("{other:?} in blocks"),
            },
            Make::Pair {
                first,
                second,
                is_left,
            } => match first {
                Binary::Add => second!(+, second, is_left),
                Binary::Sub => second!(-, second, is_left),
                Binary::Mul => second!(*, second, is_left),
                Binary::Div => second!(/, second, is_left),
                other => unreachable!("{other:?} in one loop with another"),
            },
            Make::Round(Half::F16) => one(to!(Places), x, rounded_f16),
            Make::Round(Half::BF16) => one(to!(Places), x, rounded_bf16),
            Make::Quotient => quotients::<I>(to!(Places), x, y!(), z!()),
            Make::ExpOfNegative => one(to!(Places), x, Single::<I>::exp_of_negative),
            Make::ExpOfNegativeDifference => {
                two(to!(Places), x, y!(), |x, y| {
                    Single::<I>::exp_of_negative(x - y)
                });
            }
            Make::ExpOfDifference => two(to!(Places), x, y!(), |x, y| Single::<I>::exp(x - y)),
            Make::EachProduct => each_product(to!(Block), x, y!()),
            Make::Products => products(&mut to!(Lanes).values, x, y!()),
            Make::Fold(fold) => {
                let to = to!(Lanes);
                match fold {
                    Fold::Sum => lanes(&mut to.values, x, |x, y| x + y),
                    Fold::Prod => lanes(&mut to.values, x, |x, y| x * y),
                    Fold::Max => bounds(to, x, |x, y| if x > y { x } else { y }),
                    Fold::Min => bounds(to, x, |x, y| if x < y { x } else { y }),
                }
            }
            Make::Each(fold) => {
                let to = to!(Block);
                match fold {
                    Fold::Sum => each(to, x, |x, y| x + y),
                    Fold::Prod => each(to, x, |x, y| x * y),
                    Fold::Max => each(to, x, larger),
                    Fold::Min => each(to, x, smaller),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::level::{Level, Loop};
    use crate::region::memory::places;
    use rayon::prelude::*;

    /// Quotients of a block by one number.
    struct Quotients<'a>(&'a mut Block, &'a Block, f32);

    impl Loop for Quotients<'_> {
        type Output = ();
        #[inline(always)]
        fn call<I: Instructions>(self) {
            let Self(to, x, divisor) = self;
            let to: &mut Places = places(to).try_into().expect("a block");
            quotients::<I>(to, x, &[divisor; BLOCK], &[inverse(divisor); BLOCK]);
        }
    }

    fn check(x: &Block, divisor: f32) {
        let mut found = [0.0; BLOCK];
        for level in Level::all() {
            level.run_fused(Quotients(&mut found, x, divisor));
            for (found, x) in found.iter().zip(x) {
                let expected = x / divisor;
                let same = found.to_bits() == expected.to_bits();
                assert!(
                    same || (found.is_nan() && expected.is_nan()),
                    "{x:e} / {divisor:e} is {expected:e}, not {found:e}"
                );
            }
        }
    }

    #[test]
    fn quotients_by_the_inverse_are_the_processors() {
        let mantissas = [
            0, 1, 2, 0x2a_aaaa, 0x40_0000, 0x55_5555, 0x7f_fffd, 0x7f_fffe, 0x7f_ffff,
        ];
        let others = (1..24u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> 9);
        let divisors: Vec<u32> = mantissas.into_iter().chain(others).collect();
        divisors.into_par_iter().for_each(|divisor| {
            let divisor = f32::from_bits(1f32.to_bits() | divisor);
            for first in (0..1 << 23).step_by(BLOCK) {
                let of = |at: usize| f32::from_bits(1f32.to_bits() | (first + at) as u32);
                check(&std::array::from_fn(of), divisor);
            }
        });
    }

    #[test]
    fn quotients_of_any_size_are_the_processors() {
        let (least, most) = (*DIVIDENDS.start(), *DIVIDENDS.end());
        let ends = [
            0.0,
            1.0,
            f32::MIN_POSITIVE,
            1e-45,
            3e-42,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        let divisors = [
            *DIVISORS.start(),
            *DIVISORS.end(),
            3.0,
            0.1,
            1.0 - f32::EPSILON / 2.0,
        ];
        let divisors = divisors.into_iter().chain(ends).flat_map(|x| [x, -x]);
        for divisor in divisors {
            for x in ends
                .into_iter()
                .chain([least, most, least * 1.3, most / 1.3, 3e-31, 5e30])
            {
                check(&[x; BLOCK], divisor);
                check(&[-x; BLOCK], divisor);
                // One that is near among those that are not, and the other way round.
                for place in [0, 17, BLOCK - 1] {
                    let mut mixed = [0.7; BLOCK];
                    mixed[place] = x;
                    check(&mixed, divisor);
                }
            }
            // Steps of all sizes, with bits in all places.
            for first in (0..u32::MAX - 0x3ff_ffff).step_by(0x3ff_fff1) {
                let of = |at: usize| f32::from_bits(first + at as u32 * 0x7_ffff);
                check(&std::array::from_fn(of), divisor);
            }
        }
    }
}
