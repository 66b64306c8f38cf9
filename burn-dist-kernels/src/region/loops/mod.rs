//! One instruction over many elements, for each type.

mod choices;
mod floats;
mod integers;

use std::mem::MaybeUninit;

use burn_dist_plan::region::{Binary, Unary};
use bytemuck::Pod;

use super::level::Level;

pub(super) use choices::{binary_bool, not, select};
pub(super) use floats::{larger, smaller};

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
            impl pulp::NullaryFnOnce for Compare<'_> {
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

use compare;
use map;
use zip;
use zip_dense;
