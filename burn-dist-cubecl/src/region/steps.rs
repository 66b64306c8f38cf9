//! The value that a step makes of those that it reads, all of them as bits.

use burn_dist_plan::region::{Binary, Fold, Unary};
use cubecl::prelude::*;

use super::code::{
    Kind, LARGEST, LEAST, Step, Stored, What, ZERO, ZERO_OF_FIRSTS, ZERO_OF_RESULTS,
    ZERO_OF_SECONDS,
};
use super::functions::{self, MAGNITUDE, ONE_BITS, SIGN, is_nan, kept};
use crate::element::{INFINITY, narrow, widen};

/// Returns an element, of a word that others may be in too.
#[cube]
pub(super) fn element(word: u32, at: usize, #[comptime] stored: Stored) -> u32 {
    let per_word = comptime!(stored.per_word);
    match comptime!((stored.kind, per_word)) {
        (Kind::Bool, 4) => {
            let byte = (word >> ((at % per_word) as u32 * 8u32)) & 0xffu32;
            select(byte != 0u32, 1u32, 0u32)
        }
        (Kind::Bool, _) => select(word != 0u32, 1u32, 0u32),
        (_, 1) => word,
        (kind, _) => widen(word, (at % per_word) as u32, comptime!(kind.element())),
    }
}

/// Returns the bits of a value as they are stored.
#[cube]
pub(super) fn stored_bits(value: u32, #[comptime] stored: Stored) -> u32 {
    narrow(value, comptime!(stored.kind.element()))
}

/// Rounds a float to its type, where it stands, and keeps it.
#[cube]
pub(super) fn rounded(bits: u32, numbers: &Sequence<u32>, #[comptime] kind: Kind) -> u32 {
    let element = comptime!(kind.element());
    let rounded = narrow(bits ^ *numbers.index(ZERO_OF_RESULTS), element);
    widen(rounded, 0u32, element)
}

/// Returns what a step makes.
#[cube]
pub(super) fn made(values: &Sequence<u32>, numbers: &Sequence<u32>, #[comptime] step: Step) -> u32 {
    let kind = comptime!(step.kind);
    match comptime!(step.what) {
        What::Number(index) => *numbers.index(index),
        What::Cast => {
            let x = *values.index(comptime!(step.reads[0]));
            cast(x, numbers, comptime!(step.kinds[0]), kind)
        }
        What::Unary(op) => {
            let x = *values.index(comptime!(step.reads[0]));
            let read = comptime!(step.kinds[0]);
            match comptime!((op, read.is_float())) {
                (Unary::IsNan, _) => select(is_nan(x), 1u32, 0u32),
                (Unary::IsInf, _) => select((x & MAGNITUDE) == INFINITY, 1u32, 0u32),
                (Unary::Neg | Unary::Abs | Unary::Sign, true) => with_sign(x, op),
                (op, true) => {
                    let x = x ^ *numbers.index(ZERO_OF_FIRSTS);
                    rounded(of_float(x, numbers, op), numbers, kind)
                }
                (op, false) => of_integer(x, op, kind),
            }
        }
        What::Binary(op) => {
            let x = *values.index(comptime!(step.reads[0]));
            let y = *values.index(comptime!(step.reads[1]));
            let read = comptime!(step.kinds[0]);
            match comptime!((read.is_float(), compares(op))) {
                (true, true) => compare(
                    f32::reinterpret(x),
                    f32::reinterpret(y),
                    is_nan(x) || is_nan(y),
                    op,
                ),
                (false, true) => compare_whole(x, y, op, read),
                (true, false) => of_floats(x, y, numbers, op, kind),
                (false, false) => of_integers(x, y, op, kind),
            }
        }
        What::Powi => {
            let x = *values.index(comptime!(step.reads[0]));
            let y = *values.index(comptime!(step.reads[1]));
            let exponent = cast(y, numbers, comptime!(step.kinds[1]), Kind::F32);
            rounded(functions::pow(x, exponent, numbers), numbers, kind)
        }
        What::Select => {
            let mask = *values.index(comptime!(step.reads[0]));
            let on_true = *values.index(comptime!(step.reads[1]));
            let on_false = *values.index(comptime!(step.reads[2]));
            select(mask != 0u32, on_true, on_false)
        }
        What::Fold(_) => panic!("folds take more than one element"),
    }
}

/// Returns whether a function of two makes a bool.
fn compares(op: Binary) -> bool {
    matches!(
        op,
        Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual
    )
}

/// Casts as Rust's `as` does: floats to integers saturate, NaN to zero.
#[cube]
fn cast(x: u32, numbers: &Sequence<u32>, #[comptime] from: Kind, #[comptime] to: Kind) -> u32 {
    match comptime!((from, to)) {
        (Kind::F32 | Kind::F16 | Kind::Bf16, Kind::Bool) => {
            select((x & MAGNITUDE) != 0u32, 1u32, 0u32)
        }
        (Kind::F32 | Kind::F16 | Kind::Bf16, Kind::I32) => {
            let value = f32::reinterpret(x);
            let is_large = value >= 2_147_483_648.0f32;
            let is_small = value < -2_147_483_648.0f32;
            let fits = select(is_large || is_small || is_nan(x), 0.0f32, value);
            let made = u32::cast_from(i32::cast_from(fits));
            let made = select(is_large, 0x7fff_ffffu32, made);
            let made = select(is_small, SIGN, made);
            select(is_nan(x), 0u32, made)
        }
        (Kind::F32 | Kind::F16 | Kind::Bf16, Kind::U32) => {
            let value = f32::reinterpret(x);
            let is_large = value >= 4_294_967_296.0f32;
            let is_small = value <= 0.0f32 || is_nan(x);
            let fits = select(is_large || is_small, 0.0f32, value);
            let made = select(is_large, 0xffff_ffffu32, u32::cast_from(fits));
            select(is_nan(x), 0u32, made)
        }
        // A compiler may know the bool.
        (Kind::Bool, Kind::F32 | Kind::F16 | Kind::Bf16) => {
            rounded(select(x != 0u32, ONE_BITS, 0u32), numbers, to)
        }
        (Kind::I32, Kind::F32 | Kind::F16 | Kind::Bf16) => {
            let value = f32::cast_from(i32::reinterpret(x));
            rounded(u32::reinterpret(value), numbers, to)
        }
        (Kind::U32, Kind::F32 | Kind::F16 | Kind::Bf16) => {
            rounded(u32::reinterpret(f32::cast_from(x)), numbers, to)
        }
        (_, Kind::Bool) => select(x != 0u32, 1u32, 0u32),
        (_, Kind::F16 | Kind::Bf16) => rounded(x, numbers, to),
        _ => x,
    }
}

/// Returns what a function of the sign makes of a float, which nothing rounds.
#[cube]
fn with_sign(x: u32, #[comptime] op: Unary) -> u32 {
    match comptime!(op) {
        Unary::Neg => x ^ SIGN,
        Unary::Abs => x & MAGNITUDE,
        Unary::Sign => {
            // Bits, and no choice between numbers: of one between 0 and -1 compilers make the opposite of 0 or 1.
            let is_none = (x & MAGNITUDE) == 0u32 || is_nan(x);
            ((x & SIGN) | ONE_BITS) & select(is_none, 0u32, 0xffff_ffffu32)
        }
        _ => panic!("no function of the sign"),
    }
}

/// Returns what any other function makes of a float.
#[cube]
fn of_float(x: u32, numbers: &Sequence<u32>, #[comptime] op: Unary) -> u32 {
    let value = f32::reinterpret(x);
    match comptime!(op) {
        Unary::Exp => functions::exp(x, numbers),
        Unary::Log => functions::log(x),
        Unary::Log1p => functions::log1p(x, numbers),
        Unary::Sqrt => u32::reinterpret(f32::sqrt(value)),
        Unary::Recip => u32::reinterpret(1.0f32 / value),
        Unary::Sin => functions::sin(x, numbers),
        Unary::Cos => functions::cos(x, numbers),
        Unary::Tan => functions::tan(x, numbers),
        Unary::Tanh => functions::tanh(x, numbers),
        Unary::Erf => functions::erf(x, numbers),
        Unary::Sigmoid => functions::sigmoid(x, numbers),
        Unary::Round => u32::reinterpret(f32::round(value)),
        Unary::Floor => u32::reinterpret(f32::floor(value)),
        Unary::Ceil => u32::reinterpret(f32::ceil(value)),
        Unary::Trunc => u32::reinterpret(f32::trunc(value)),
        _ => panic!("no function of floats that regions have here"),
    }
}

/// Returns what a function makes of an integer or a bool.
#[cube]
fn of_integer(x: u32, #[comptime] op: Unary, #[comptime] kind: Kind) -> u32 {
    match comptime!((op, kind)) {
        (Unary::Not, Kind::Bool) => x ^ 1u32,
        (Unary::Not, _) => x ^ 0xffff_ffffu32,
        (Unary::Neg, _) => 0u32 - x,
        (Unary::Abs, Kind::I32) => select(x >= SIGN, 0u32 - x, x),
        (Unary::Abs, _) => x,
        (Unary::Sign, Kind::I32) => {
            let above = select(x == 0u32, 0u32, 1u32);
            select(x >= SIGN, 0xffff_ffffu32, above)
        }
        (Unary::Sign, _) => select(x == 0u32, 0u32, 1u32),
        _ => panic!("no function of integers"),
    }
}

/// Returns 1 or 0.
#[cube]
fn compare(x: f32, y: f32, is_nan: bool, #[comptime] op: Binary) -> u32 {
    match comptime!(op) {
        Binary::Equal => select(x == y && !is_nan, 1u32, 0u32),
        Binary::NotEqual => select(x != y || is_nan, 1u32, 0u32),
        Binary::Less => select(x < y && !is_nan, 1u32, 0u32),
        Binary::LessEqual => select(x <= y && !is_nan, 1u32, 0u32),
        Binary::Greater => select(x > y && !is_nan, 1u32, 0u32),
        Binary::GreaterEqual => select(x >= y && !is_nan, 1u32, 0u32),
        _ => panic!("no comparison"),
    }
}

/// Returns a number whose order is that of an integer.
#[cube]
fn ordered(x: u32, #[comptime] kind: Kind) -> u32 {
    match comptime!(kind) {
        Kind::I32 => x ^ SIGN,
        _ => x,
    }
}

#[cube]
fn compare_whole(x: u32, y: u32, #[comptime] op: Binary, #[comptime] kind: Kind) -> u32 {
    let x = ordered(x, kind);
    let y = ordered(y, kind);
    match comptime!(op) {
        Binary::Equal => select(x == y, 1u32, 0u32),
        Binary::NotEqual => select(x != y, 1u32, 0u32),
        Binary::Less => select(x < y, 1u32, 0u32),
        Binary::LessEqual => select(x <= y, 1u32, 0u32),
        Binary::Greater => select(x > y, 1u32, 0u32),
        Binary::GreaterEqual => select(x >= y, 1u32, 0u32),
        _ => panic!("no comparison"),
    }
}

/// Returns the larger of two floats, NaN if either is; of equal ones the second.
#[cube]
fn larger(x: u32, y: u32) -> u32 {
    let is_larger = f32::reinterpret(x) > f32::reinterpret(y) && !is_nan(y);
    select(is_larger || is_nan(x), x, y)
}

/// Returns the smaller of two floats, NaN if either is; of equal ones the second.
#[cube]
fn smaller(x: u32, y: u32) -> u32 {
    let is_smaller = f32::reinterpret(x) < f32::reinterpret(y) && !is_nan(y);
    select(is_smaller || is_nan(x), x, y)
}

#[cube]
fn of_floats(
    x: u32,
    y: u32,
    numbers: &Sequence<u32>,
    #[comptime] op: Binary,
    #[comptime] kind: Kind,
) -> u32 {
    match comptime!(op) {
        Binary::Min => smaller(x, y),
        Binary::Max => larger(x, y),
        Binary::Pow => rounded(functions::pow(x, y, numbers), numbers, kind),
        op => {
            // Of 0 and a number, and of a number with itself, compilers make 0 or 1, which of infinities it is not.
            let left = f32::reinterpret(x ^ *numbers.index(ZERO_OF_FIRSTS));
            let right = f32::reinterpret(y ^ *numbers.index(ZERO_OF_SECONDS));
            rounded(arithmetic(left, right, op), numbers, kind)
        }
    }
}

#[cube]
fn arithmetic(left: f32, right: f32, #[comptime] op: Binary) -> u32 {
    match comptime!(op) {
        Binary::Add => u32::reinterpret(left + right),
        Binary::Sub => u32::reinterpret(left - right),
        Binary::Mul => u32::reinterpret(left * right),
        Binary::Div => u32::reinterpret(left / right),
        _ => panic!("no function of floats that regions have here"),
    }
}

#[cube]
fn of_integers(x: u32, y: u32, #[comptime] op: Binary, #[comptime] kind: Kind) -> u32 {
    match comptime!(op) {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Min => select(ordered(x, kind) < ordered(y, kind), x, y),
        Binary::Max => select(ordered(x, kind) > ordered(y, kind), x, y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::ShiftLeft => x << (y & 31u32),
        Binary::ShiftRight => {
            let by = y & 31u32;
            let fill = match comptime!(kind) {
                Kind::I32 => select(x >= SIGN, 0xffff_ffffu32 ^ (0xffff_ffffu32 >> by), 0u32),
                _ => 0u32.runtime(),
            };
            (x >> by) | fill
        }
        _ => panic!("no function of integers that regions have here"),
    }
}

/// Returns the value that changes nothing.
#[cube]
pub(super) fn neutral(
    numbers: &Sequence<u32>,
    #[comptime] fold: Fold,
    #[comptime] kind: Kind,
) -> u32 {
    match comptime!((fold, kind, kind.is_float())) {
        // Compilers know that 0 and a number is the number, which of -0 it is not.
        (Fold::Sum, _, true) => *numbers.index(ZERO),
        (Fold::Sum, _, false) => 0u32.runtime(),
        (Fold::Prod, _, true) => ONE_BITS.runtime(),
        (Fold::Prod, _, false) => 1u32.runtime(),
        (Fold::Max, _, true) => *numbers.index(LEAST),
        (Fold::Min, _, true) => *numbers.index(LARGEST),
        (Fold::Max, Kind::I32, _) => SIGN.runtime(),
        (Fold::Min, Kind::I32, _) => 0x7fff_ffffu32.runtime(),
        (Fold::Max, _, _) => 0u32.runtime(),
        (Fold::Min, Kind::Bool, _) => 1u32.runtime(),
        (Fold::Min, _, _) => 0xffff_ffffu32.runtime(),
    }
}

/// Folds two values; floats are rounded to 16 bits when all are folded.
#[cube]
pub(super) fn pair(
    x: u32,
    y: u32,
    numbers: &Sequence<u32>,
    #[comptime] fold: Fold,
    #[comptime] kind: Kind,
) -> u32 {
    match comptime!((fold, kind.is_float())) {
        (Fold::Sum, true) => {
            let sum = f32::reinterpret(x) + f32::reinterpret(y);
            u32::reinterpret(kept(sum, numbers))
        }
        (Fold::Sum, false) => x + y,
        (Fold::Prod, true) => {
            let product = f32::reinterpret(x) * f32::reinterpret(y);
            u32::reinterpret(kept(product, numbers))
        }
        (Fold::Prod, false) => x * y,
        (Fold::Max, true) => larger(x, y),
        (Fold::Min, true) => smaller(x, y),
        (Fold::Max, false) => select(ordered(x, kind) > ordered(y, kind), x, y),
        (Fold::Min, false) => select(ordered(x, kind) < ordered(y, kind), x, y),
    }
}
