//! Functions of f32, as bits: the polynomials of the host's kernels where those are of f32, and their like where those
//! compute in f64, which most devices do not have.
//!
//! | function | largest distance to the host's, in units of the last place | found |
//! | --- | --- | --- |
//! | `exp`, `log`, `log1p`, `erf` | 2 | 1 |
//! | `sin`, `cos`, up to 100,000 | 2 | 2 |
//! | `tanh`, `sigmoid` | 3 | 2 |
//! | `tan`, up to 100,000; `pow` | 4 | 4; 2 |
//!
//! Found on Mesa's lavapipe, over every 3,001st number. Larger angles are the device's own.
//!
//! A device's compiler may do as if sums and products were exact: it joins a product and a sum to one instruction that
//! rounds once, and takes `(1 + x) - 1` for `x` and `0 * x` for 0 (Mesa does all of it). What has to be rounded where it
//! stands is [kept](kept) from it, by bits that are combined with a zero that it does not know. The same zero twice is
//! nothing, which it does know, so that there are zeros for results of instructions, for the first and for the second of
//! the values that they read: it knows neither what an instruction reads, nor what it makes.
//!
//! # Source
//! Those of `burn_dist_kernels::region`; logarithm: Cephes (Moshier); products without loss: Dekker, "A floating-point
//! technique for extending the available precision" (1971).

#![allow(
    clippy::approx_constant,
    clippy::excessive_precision,
    reason = "coefficients as they were published"
)]

use cubecl::prelude::*;

use super::code::ZERO;
use crate::element::{INFINITY, NAN};

/// The sign of a float.
pub(super) const SIGN: u32 = 0x8000_0000;
/// The bits of 1.
pub(super) const ONE_BITS: u32 = 0x3f80_0000;
/// A float without its sign.
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;

/// Returns a number as it is, and no compiler knows that: what is made of it sees it rounded.
#[cube]
pub(super) fn kept(x: f32, numbers: &Sequence<u32>) -> f32 {
    f32::reinterpret(u32::reinterpret(x) ^ *numbers.index(ZERO))
}

#[cube]
pub(super) fn is_nan(bits: u32) -> bool {
    (bits & MAGNITUDE) > INFINITY
}

/// Returns a magnitude with the sign of another number.
#[cube]
fn signed(magnitude: f32, sign: u32) -> u32 {
    (u32::reinterpret(magnitude) & MAGNITUDE) | (sign & SIGN)
}

/// Returns 2 to the power of a whole number from -126 to 127.
#[cube]
fn power_of_two(n: i32) -> f32 {
    f32::reinterpret(u32::cast_from(n + 127i32) << 23u32)
}

/// Returns e to the power of a number, and a little more: `rest` is far below a unit of its last place.
#[cube]
fn exp_of(x: f32, rest: f32, numbers: &Sequence<u32>) -> f32 {
    // Below, the result is zero; above, infinite.
    let bounded = select(x < -104.0f32, -104.0f32, x);
    let bounded = select(bounded > 89.0f32, 89.0f32, bounded);
    let n = f32::floor(fma(bounded, 1.442_695_f32, 0.5f32));
    let r = kept(fma(n, -0.693_359_4_f32, bounded), numbers);
    let r = fma(n, 2.121_944_4e-4f32, r) + rest;
    let p = fma(1.381_446_5e-3f32, r, 8.368_781e-3f32);
    let p = fma(p, r, 4.166_839_3e-2f32);
    let p = fma(p, r, 1.666_652e-1f32);
    let p = fma(p, r, 4.999_999_4e-1f32);
    let p = fma(p, r, 1.0f32);
    let p = fma(p, r, 1.0f32);
    // In two factors: 2^n itself may be below the least normal number, or above the largest.
    let whole = i32::cast_from(n);
    let first = whole / 2i32;
    kept(p * power_of_two(first), numbers) * power_of_two(whole - first)
}

#[cube]
pub(super) fn exp(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let x = f32::reinterpret(bits);
    let made = exp_of(x, 0.0f32, numbers);
    select(is_nan(bits), bits, u32::reinterpret(made))
}

#[cube]
pub(super) fn sigmoid(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let e = exp_of(f32::reinterpret(bits | SIGN), 0.0f32, numbers);
    let is_below = bits >= SIGN;
    let above = select(is_below, e, 1.0f32);
    let e = kept(e, numbers);
    let sum = kept(1.0f32 + e, numbers);
    let quotient = kept(above / sum, numbers);
    // What the sum has lost.
    let lost = kept(e - kept(sum - 1.0f32, numbers), numbers);
    let inverse = select(is_below, 1.0f32 - quotient, quotient);
    let made = fma(-quotient, lost * inverse, quotient);
    select(is_nan(bits), bits, u32::reinterpret(made))
}

#[cube]
pub(super) fn tanh(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let x = f32::reinterpret(bits & MAGNITUDE);
    let z = x * x;
    let p = fma(-5.704_988_7e-3f32, z, 2.063_908_9e-2f32);
    let p = fma(p, z, -5.373_971_6e-2f32);
    let p = fma(p, z, 1.333_144_2e-1f32);
    let p = fma(p, z, -3.333_328_2e-1f32);
    let small = fma(p * z, x, x);
    let large = 1.0f32 - 2.0f32 / (exp_of(2.0f32 * x, 0.0f32, numbers) + 1.0f32);
    let made = select(x > 0.625f32, large, small);
    select(is_nan(bits), bits, signed(made, bits))
}

#[cube]
pub(super) fn erf(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let x = f32::reinterpret(bits & MAGNITUDE);
    let z = x * x;
    let p = fma(7.875_875e-5f32, z, -8.016_864e-4f32);
    let p = fma(p, z, 5.189_087_5e-3f32);
    let p = fma(p, z, -2.685_421_2e-2f32);
    let p = fma(p, z, 1.128_359_5e-1f32);
    let p = fma(p, z, -3.761_262_7e-1f32);
    // 1 less: x itself is added, exactly.
    let p = fma(p, z, 1.283_791_7e-1f32);
    let small = fma(x, p, x);
    let bounded = select(x > 4.0f32, 4.0f32, x);
    let p = fma(-1.637_151_4e-6f32, bounded, 4.605_804_3e-5f32);
    let p = fma(p, bounded, -5.968_056_3e-4f32);
    let p = fma(p, bounded, 4.759_596_3e-3f32);
    let p = fma(p, bounded, -2.642_113_6e-2f32);
    let p = fma(p, bounded, 1.100_800_8e-1f32);
    let p = fma(p, bounded, 6.318_260_4e-1f32);
    let p = fma(p, bounded, 1.130_233_4_f32);
    let p = fma(p, bounded, -3.201_380_4e-4f32);
    let large = 1.0f32 - exp_of(-p, 0.0f32, numbers);
    let made = select(x > 1.0f32, large, small);
    select(is_nan(bits), bits, signed(made, bits))
}

/// The exponent of a positive number, and what it is multiplied by: between the root of 1/2 and that of 2.
#[derive(CubeType, Clone, Copy)]
struct Parts {
    exponent: f32,
    factor: f32,
}

/// The bits of the root of 1/2.
const ROOT_OF_HALF: u32 = 0x3f35_04f3;
/// 128 as an exponent.
const EXPONENT_128: u32 = 128 << 23;

/// Returns the parts of a positive number that is not infinite.
#[cube]
fn parts(bits: u32) -> Parts {
    // A subnormal number is a whole one, times 2^-149; some devices have none.
    let is_small = bits < 0x0080_0000u32;
    let bits = select(is_small, u32::reinterpret(f32::cast_from(bits)), bits);
    let more = select(is_small, 128.0f32 + 149.0f32, 128.0f32);
    // Kept positive: 128 more.
    let exponent = (bits - ROOT_OF_HALF + EXPONENT_128) >> 23u32;
    let factor = bits + EXPONENT_128 - (exponent << 23u32);
    Parts {
        exponent: f32::cast_from(exponent) - more,
        factor: f32::reinterpret(factor),
    }
}

/// Returns the logarithm of a positive number that is not infinite.
#[cube]
fn log_of(bits: u32) -> f32 {
    let parts = parts(bits);
    let exponent = parts.exponent;
    let f = parts.factor - 1.0f32;
    let z = f * f;
    let p = fma(7.037_683_6e-2f32, f, -1.151_461e-1f32);
    let p = fma(p, f, 1.167_699_87e-1f32);
    let p = fma(p, f, -1.242_014_1e-1f32);
    let p = fma(p, f, 1.424_932_3e-1f32);
    let p = fma(p, f, -1.666_805_8e-1f32);
    let p = fma(p, f, 2.000_071_5e-1f32);
    let p = fma(p, f, -2.499_999_4e-1f32);
    let p = fma(p, f, 3.333_333_1e-1f32);
    let p = fma(exponent, -2.121_944_4e-4f32, p * f * z);
    let p = fma(z, -0.5f32, p);
    fma(exponent, 0.693_359_4_f32, f + p)
}

/// Returns the logarithm of a number where that is not a number, or infinite.
#[cube]
fn log_of_specials(bits: u32, made: f32) -> u32 {
    let made = u32::reinterpret(made);
    let made = select((bits & MAGNITUDE) == 0u32, SIGN | INFINITY, made);
    let made = select(bits > SIGN, NAN, made);
    select(
        (bits & MAGNITUDE) >= INFINITY && bits != (SIGN | INFINITY),
        bits,
        made,
    )
}

#[cube]
pub(super) fn log(bits: u32) -> u32 {
    log_of_specials(bits, log_of(bits & MAGNITUDE))
}

#[cube]
pub(super) fn log1p(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let x = f32::reinterpret(bits);
    let sum = kept(1.0f32 + x, numbers);
    // What the sum has lost.
    let lost = x - kept(sum - 1.0f32, numbers);
    let made = log_of(u32::reinterpret(sum)) + lost / sum;
    let made = log_of_specials(u32::reinterpret(sum), made);
    // Zeros keep their sign, and infinity has nothing to lose.
    select(
        (bits & MAGNITUDE) == 0u32 || bits == INFINITY || is_nan(bits),
        bits,
        made,
    )
}

/// An angle as whole quarter turns, and the rest.
#[derive(CubeType, Clone, Copy)]
struct Turned {
    rest: f32,
    turns: u32,
}

/// Larger angles are the device's: they take more bits of pi.
const ANGLE_MAX: u32 = 0x47c3_5000;

/// The angle is not above [`ANGLE_MAX`], 100,000.
#[cube]
fn turned(x: f32, numbers: &Sequence<u32>) -> Turned {
    let n = f32::floor(fma(x, 0.636_619_75_f32, 0.5f32));
    // pi / 2 in four parts: the first three of 8 bits each, whose products are exact.
    let r = kept(fma(n, -1.570_312_5_f32, x), numbers);
    let r = kept(fma(n, -4.825_592e-4f32, r), numbers);
    let r = kept(fma(n, -1.266_598_7e-6f32, r), numbers);
    let r = fma(n, -9.920_936e-10f32, r);
    Turned {
        rest: r,
        turns: u32::cast_from(i32::cast_from(n)),
    }
}

#[cube]
fn sin_of_rest(r: f32) -> f32 {
    let z = r * r;
    let p = fma(2.718_311_5e-6f32, z, -1.983_933_5e-4f32);
    let p = fma(p, z, 8.333_329e-3f32);
    let p = fma(p, z, -1.666_666_7e-1f32);
    fma(p * z, r, r)
}

#[cube]
fn cos_of_rest(r: f32) -> f32 {
    let z = r * r;
    let p = fma(2.439_044_9e-5f32, z, -1.388_676_4e-3f32);
    let p = fma(p, z, 4.166_662_3e-2f32);
    let p = fma(p, z, -0.5f32);
    fma(p, z, 1.0f32)
}

/// The part of an angle of more than [`ANGLE_MAX`] that is computed: none.
#[cube]
fn small_angle(bits: u32) -> f32 {
    f32::reinterpret(select((bits & MAGNITUDE) > ANGLE_MAX, 0u32, bits))
}

/// Returns what was made of an angle; zeros are themselves, and NaN is made of those that are not finite.
#[cube]
fn of_angle(bits: u32, made: f32, of_large: f32) -> u32 {
    let magnitude = bits & MAGNITUDE;
    let made = select(magnitude > ANGLE_MAX, of_large, made);
    select(magnitude >= INFINITY, NAN, u32::reinterpret(made))
}

#[cube]
pub(super) fn sin(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let turned = turned(small_angle(bits), numbers);
    let made = select(
        turned.turns & 1u32 == 0u32,
        sin_of_rest(turned.rest),
        cos_of_rest(turned.rest),
    );
    let made = select(turned.turns & 2u32 == 0u32, made, -made);
    let made = of_angle(bits, made, f32::sin(f32::reinterpret(bits)));
    select((bits & MAGNITUDE) == 0u32, bits, made)
}

#[cube]
pub(super) fn cos(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let turned = turned(small_angle(bits), numbers);
    let made = select(
        turned.turns & 1u32 == 0u32,
        cos_of_rest(turned.rest),
        sin_of_rest(turned.rest),
    );
    let made = select((turned.turns + 1u32) & 2u32 == 0u32, made, -made);
    of_angle(bits, made, f32::cos(f32::reinterpret(bits)))
}

#[cube]
pub(super) fn tan(bits: u32, numbers: &Sequence<u32>) -> u32 {
    let turned = turned(small_angle(bits), numbers);
    let sin = sin_of_rest(turned.rest);
    let cos = cos_of_rest(turned.rest);
    let is_even = turned.turns & 1u32 == 0u32;
    let above = select(is_even, sin, -cos);
    let below = select(is_even, cos, sin);
    let made = of_angle(bits, above / below, f32::tan(f32::reinterpret(bits)));
    select((bits & MAGNITUDE) == 0u32, bits, made)
}

/// A number in two parts, the second far below a unit of the last place of the first.
#[derive(CubeType, Clone, Copy)]
struct Two {
    high: f32,
    low: f32,
}

/// Returns a product and what it has lost.
#[cube]
fn two_product(x: f32, y: f32, numbers: &Sequence<u32>) -> Two {
    // Upper halves, so that products of halves are exact.
    let x_high = f32::reinterpret(u32::reinterpret(x) & 0xffff_f000u32);
    let y_high = f32::reinterpret(u32::reinterpret(y) & 0xffff_f000u32);
    let x_low = x - x_high;
    let y_low = y - y_high;
    let high = kept(x * y, numbers);
    let low = kept(kept(x_high * y_high, numbers) - high, numbers);
    let low = kept(low + kept(x_high * y_low, numbers), numbers);
    let low = kept(low + kept(x_low * y_high, numbers), numbers);
    let low = low + x_low * y_low;
    Two { high, low }
}

/// Returns the logarithm of a positive number that is not infinite, to 30 bits.
#[cube]
fn log_in_two(bits: u32, numbers: &Sequence<u32>) -> Two {
    let parts = parts(bits);
    let m = parts.factor;
    // ln m = 2 artanh s, s = (m - 1) / (m + 1).
    let above = m - 1.0f32;
    let below = kept(m + 1.0f32, numbers);
    let below_low = m - kept(below - 1.0f32, numbers);
    let s = kept(above / below, numbers);
    let back = two_product(s, below, numbers);
    let left = kept(above - back.high, numbers);
    let s_low = (kept(left - back.low, numbers) - s * below_low) / below;
    let z = s * s;
    let p = fma(z, 1.0f32 / 11.0f32, 1.0f32 / 9.0f32);
    let p = fma(p, z, 1.0f32 / 7.0f32);
    let p = fma(p, z, 1.0f32 / 5.0f32);
    let p = fma(p, z, 1.0f32 / 3.0f32);
    let tail = s_low + s * (z * p);
    // The upper part of ln 2 has few bits.
    let whole = kept(parts.exponent * 0.693_359_4_f32, numbers);
    let twice = 2.0f32 * s;
    let high = kept(whole + twice, numbers);
    let taken = kept(high - whole, numbers);
    let lost = (whole - kept(high - taken, numbers)) + kept(twice - taken, numbers);
    let low = fma(parts.exponent, -2.121_944_4e-4f32, 2.0f32 * tail) + lost;
    let low = kept(low, numbers);
    let sum = kept(high + low, numbers);
    Two {
        high: sum,
        low: low - kept(sum - high, numbers),
    }
}

/// Special cases are as IEEE 754 and C have them.
#[cube]
pub(super) fn pow(x: u32, exponent: u32, numbers: &Sequence<u32>) -> u32 {
    let y = f32::reinterpret(exponent);
    let magnitude = x & MAGNITUDE;
    let y_magnitude = exponent & MAGNITUDE;
    let log = log_in_two(select(magnitude >= INFINITY, ONE_BITS, magnitude), numbers);
    let main = two_product(log.high, y, numbers);
    let rest = fma(log.low, y, main.low);
    let made = u32::reinterpret(exp_of(main.high, rest, numbers));
    // Where a product is infinite, or nearly so, what it has lost is not a number.
    let made = select(main.high > 128.0f32, INFINITY, made);
    let made = select(main.high < -128.0f32, 0u32, made);
    let is_below = exponent >= SIGN;
    let made = select(magnitude == 0u32, select(is_below, INFINITY, 0u32), made);
    let made = select(
        magnitude == INFINITY,
        select(is_below, 0u32, INFINITY),
        made,
    );
    // Of an infinite exponent it matters on which side of 1 the base is.
    let grows = (magnitude > ONE_BITS) != is_below;
    let made = select(y_magnitude == INFINITY, select(grows, INFINITY, 0u32), made);
    let half = y * 0.5f32;
    let is_whole = f32::trunc(y) == y;
    let is_odd = is_whole && f32::trunc(half) != half && y_magnitude < INFINITY;
    let is_negative = x >= SIGN;
    let made = select(is_negative && is_odd, made | SIGN, made);
    let is_real = is_whole || magnitude == 0u32 || magnitude == INFINITY;
    let made = select(is_negative && !is_real, NAN, made);
    let made = select(is_nan(x) || is_nan(exponent), NAN, made);
    let is_one =
        y_magnitude == 0u32 || x == ONE_BITS || (magnitude == ONE_BITS && y_magnitude == INFINITY);
    select(is_one, ONE_BITS, made)
}
