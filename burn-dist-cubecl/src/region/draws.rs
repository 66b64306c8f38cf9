//! Random numbers, which kernels draw by index as [`burn_dist_kernels::random`] does, bit by bit.
//!
//! Every element computes the four words of its counter and uses one or two: memory is slower.

use cubecl::prelude::*;

use super::code::{FIRST, Law, PARAMETERS, STREAM};
use super::functions::{ONE_BITS, SIGN, kept};

/// Returns the bits of an element, by how far its number is from that of the first, before it is rounded to its type.
/// The numbers of the draw begin at `of`.
#[cube]
pub(super) fn drawn(
    apart: usize,
    numbers: &Sequence<u32>,
    #[comptime] of: usize,
    #[comptime] law: Law,
) -> u32 {
    let index = *numbers.index(comptime!(of + FIRST)) + apart as u32;
    let words = words(index / 4u32, numbers, of);
    let place = index % 4u32;
    let is_late = place >= 2u32;
    let even = select(is_late, *words.index(2usize), *words.index(0usize));
    let odd = select(is_late, *words.index(3usize), *words.index(1usize));
    let is_odd = place % 2u32 == 1u32;
    let word = select(is_odd, odd, even);
    let x = *numbers.index(comptime!(of + PARAMETERS));
    let y = *numbers.index(comptime!(of + PARAMETERS + 1));
    match comptime!(law) {
        Law::Uniform => {
            let last = *numbers.index(comptime!(of + PARAMETERS + 2));
            let unit = f32::cast_from(word >> 8u32) * comptime!(1.0 / (1 << 24) as f32);
            let product = kept(f32::reinterpret(y) * unit, numbers);
            let sum = kept(f32::reinterpret(x) + product, numbers);
            let last = f32::reinterpret(last);
            u32::reinterpret(select(sum < last, sum, last))
        }
        Law::Bernoulli => select(word < x || y != 0u32, ONE_BITS, 0u32),
        Law::Normal => {
            let normal = normal(even, odd, is_odd, numbers);
            let product = kept(f32::reinterpret(y) * normal, numbers);
            u32::reinterpret(f32::reinterpret(x) + product)
        }
    }
}

/// Returns the four words of a counter.
///
/// # Source
/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#[cube]
fn words(counter: u32, numbers: &Sequence<u32>, #[comptime] of: usize) -> Sequence<u32> {
    let mut x0 = counter;
    let mut x1 = 0u32.runtime();
    let mut x2 = *numbers.index(comptime!(of + STREAM));
    let mut x3 = *numbers.index(comptime!(of + STREAM + 1));
    let mut k0 = *numbers.index(of);
    let mut k1 = *numbers.index(comptime!(of + 1));
    #[unroll]
    for _ in 0..10u32 {
        let a = x0;
        let b = x2;
        x0 = b.mul_hi(0xcd9e_8d57u32) ^ x1 ^ k0;
        x1 = b * 0xcd9e_8d57u32;
        x2 = a.mul_hi(0xd251_1f53u32) ^ x3 ^ k1;
        x3 = a * 0xd251_1f53u32;
        k0 += 0x9e37_79b9u32;
        k1 += 0xbb67_ae85u32;
    }
    let mut words = Sequence::<u32>::new();
    words.push(x0);
    words.push(x1);
    words.push(x2);
    words.push(x3);
    words
}

/// 2^-32.
const STEP: f32 = 1.0 / (1u64 << 32) as f32;

/// Returns one of two standard normal numbers, by Box-Muller.
#[cube]
fn normal(radius: u32, turn: u32, is_second: bool, numbers: &Sequence<u32>) -> f32 {
    let u = kept(f32::cast_from(radius) * STEP + 0.5f32 * STEP, numbers);
    let radius = kept(f32::sqrt(-2.0f32 * ln(u, numbers)), numbers);
    kept(radius * of_turn(turn, is_second, numbers), numbers)
}

/// Returns the natural logarithm of a positive normal number.
#[cube]
fn ln(x: f32, numbers: &Sequence<u32>) -> f32 {
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let bits = i32::reinterpret(x) - 0x3f35_04f3i32;
    let e = f32::cast_from(bits >> 23i32);
    let m = f32::reinterpret((bits & 0x007f_ffffi32) + 0x3f35_04f3i32);
    let t = kept(m - 1.0f32, numbers);
    let square = kept(t * t, numbers);
    let p = step(7.037_683_6e-2f32, t, -1.151_461e-1f32, numbers);
    let p = step(p, t, 1.167_699_9e-1f32, numbers);
    let p = step(p, t, -1.242_014_1e-1f32, numbers);
    let p = step(p, t, 1.424_932_3e-1f32, numbers);
    let p = step(p, t, -1.666_805_8e-1f32, numbers);
    let p = step(p, t, 2.000_071_5e-1f32, numbers);
    let p = step(p, t, -2.499_999_4e-1f32, numbers);
    let p = step(p, t, 3.333_333e-1f32, numbers);
    let p = kept(kept(p * t, numbers) * square, numbers);
    let low = kept(p - kept(2.121_944_4e-4f32 * e, numbers), numbers);
    let low = kept(low - 0.5f32 * square, numbers);
    let sum = kept(low + t, numbers);
    kept(sum + kept(0.693_359_4f32 * e, numbers), numbers)
}

/// Returns the cosine or the sine of `word / 2^32` of a full turn.
#[cube]
fn of_turn(word: u32, is_sine: bool, numbers: &Sequence<u32>) -> f32 {
    // The nearest quarter turn and the rest in [-1/8, 1/8) of a turn.
    let quarter = (word + comptime!(1u32 << 29)) >> 30u32;
    let rest = i32::reinterpret(word - (quarter << 30u32));
    let x = kept(
        f32::cast_from(rest) * comptime!(core::f32::consts::TAU * STEP),
        numbers,
    );
    let square = kept(x * x, numbers);
    let sin = step(-1.951_529_6e-4f32, square, 8.332_161e-3f32, numbers);
    let sin = step(sin, square, -1.666_665_5e-1f32, numbers);
    let sin = kept(kept(sin * square, numbers) * x, numbers);
    let sin = kept(sin + x, numbers);
    let cos = step(2.443_315_7e-5f32, square, -1.388_731_6e-3f32, numbers);
    let cos = step(cos, square, 4.166_664_6e-2f32, numbers);
    let cos = kept(kept(cos * square, numbers) * square, numbers);
    let cos = kept(kept(cos - 0.5f32 * square, numbers) + 1.0f32, numbers);
    // Rotated by quarter turns: sine and cosine become cosine and the opposite of the sine.
    let turned = quarter % 2u32 == 1u32;
    let is_cosine = select(is_sine, turned, !turned);
    let value = select(is_cosine, cos, sin);
    let sign = select(is_sine, quarter >> 1u32, quarter ^ (quarter >> 1u32));
    f32::reinterpret(u32::reinterpret(value) ^ ((sign << 31u32) & SIGN))
}

/// Returns a step of a polynomial: a product and a sum, each rounded.
#[cube]
fn step(p: f32, x: f32, #[comptime] coefficient: f32, numbers: &Sequence<u32>) -> f32 {
    kept(kept(p * x, numbers) + coefficient, numbers)
}
