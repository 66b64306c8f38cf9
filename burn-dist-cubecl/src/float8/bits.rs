//! Casts between the bits of floats, in integers alone: exact on every device, whatever it does with subnormal numbers,
//! NaN and infinities. Each function is an ordinary one too, which tests call on the host.

use burn_dist_plan::policy::Fp8;
use cubecl::prelude::*;

use crate::element::{INFINITY, NAN};

/// Bits of the mantissa.
pub(super) const fn mantissa_bits(format: Fp8) -> u32 {
    match format {
        Fp8::E4M3 => 3,
        Fp8::E5M2 => 2,
    }
}

/// The bias of f32's exponent beyond that of the format's.
pub(super) const fn rebias(format: Fp8) -> u32 {
    match format {
        Fp8::E4M3 => 127 - 7,
        Fp8::E5M2 => 127 - 15,
    }
}

/// The bits of the largest finite value, in f32 and in 8 bits.
const fn largest(format: Fp8) -> (u32, u32) {
    match format {
        Fp8::E4M3 => (0x43e0_0000, 0x7e),
        Fp8::E5M2 => (0x4760_0000, 0x7b),
    }
}

/// Returns the 8 bits of an f32: of the nearest value, of two the even one. Values beyond the largest finite one,
/// infinities among them, become that one; NaN stays NaN.
#[cube]
pub(super) fn encode(bits: u32, #[comptime] format: Fp8) -> u32 {
    let mantissa = comptime!(mantissa_bits(format));
    let drop = comptime!(23 - mantissa);
    let rebias = comptime!(rebias(format));
    let max = comptime!(largest(format).0);
    let max_code = comptime!(largest(format).1);

    let normal_min = comptime!((rebias + 1) << 23);

    let magnitude = bits & 0x7fff_ffffu32;
    // Normal numbers: the bits that are dropped round those that stay, and carry into the exponent.
    let large = select(magnitude < normal_min, normal_min, magnitude);
    let below_half = comptime!((1u32 << (drop - 1)) - 1);
    let rounded = (large + below_half + ((large >> drop) & 1u32)) >> drop;
    let normal = rounded - comptime!(rebias << mantissa);
    // Subnormal ones: whole units, each a bit further to the right for each step of the exponent.
    let small = select(magnitude < normal_min, magnitude, normal_min - 1u32);
    let away = comptime!(drop + 1 + rebias) - (small >> 23u32);
    let shift = select(away > 31u32, 31u32, away);
    let whole = (small & 0x7f_ffffu32) | 0x80_0000u32;
    let below_half = (1u32 << (shift - 1u32)) - 1u32;
    let subnormal = (whole + below_half + ((whole >> shift) & 1u32)) >> shift;

    let code = select(magnitude < normal_min, subnormal, normal);
    let code = select(magnitude >= max, max_code, code);
    let code = select(magnitude > INFINITY, 0x7fu32, code);
    code | ((bits >> 24u32) & 0x80u32)
}

/// Returns the bits in f32 of 8 bits.
#[cube]
pub(super) fn decode(code: u32, #[comptime] format: Fp8) -> u32 {
    let mantissa = comptime!(mantissa_bits(format));
    let drop = comptime!(23 - mantissa);
    let rebias = comptime!(rebias(format));

    let magnitude = code & 0x7fu32;
    let normal = (magnitude << drop) + comptime!(rebias << 23);
    // The leading one of a number of units, which is less than 8.
    let lead = select(magnitude > 1u32, 1u32, 0u32) + select(magnitude > 3u32, 1u32, 0u32);
    let fraction = (magnitude << (23u32 - lead)) & 0x7f_ffffu32;
    let subnormal = ((comptime!(rebias + 1 - mantissa) + lead) << 23u32) | fraction;
    let subnormal = select(magnitude == 0u32, 0u32, subnormal);
    let finite = select(magnitude >= comptime!(1u32 << mantissa), normal, subnormal);
    let value = match comptime!(format) {
        Fp8::E4M3 => select(magnitude == 0x7fu32, NAN, finite),
        Fp8::E5M2 => {
            let special = select(magnitude == 0x7cu32, INFINITY, NAN);
            select(magnitude >= 0x7cu32, special, finite)
        }
    };
    value | ((code & 0x80u32) << 24u32)
}

/// Returns the quotient of two normal numbers, rounded to the nearest f32, of two the even one: long division. Division
/// of a GPU may be a few units off.
#[cube]
pub(super) fn divide(numerator: u32, denominator: u32) -> u32 {
    let dividend = (numerator & 0x7f_ffffu32) | 0x80_0000u32;
    let divisor = (denominator & 0x7f_ffffu32) | 0x80_0000u32;
    let is_less = dividend < divisor;
    // The first bit of the quotient is one.
    let mut rest = select(is_less, dividend << 1u32, dividend);
    let exponent = (numerator >> 23u32) + 127u32 - (denominator >> 23u32);
    let exponent = select(is_less, exponent - 1u32, exponent);
    // The 24 bits of the result, and one to round with.
    let mut quotient = 0u32;
    for _ in 0..25u32 {
        let bit = select(rest >= divisor, 1u32, 0u32);
        quotient = (quotient << 1u32) | bit;
        rest = (rest - bit * divisor) << 1u32;
    }
    let is_inexact = select(rest != 0u32, 1u32, 0u32);
    let up = quotient & (is_inexact | (quotient >> 1u32)) & 1u32;
    // The leading one counts as one of the exponent, and a carry as another.
    ((exponent - 1u32) << 23u32) + (quotient >> 1u32) + up
}

/// Returns one divided by a scale; infinity of zero.
#[cube]
pub(super) fn inverse(scale: u32) -> u32 {
    let is_normal = scale > 0u32 && scale < INFINITY;
    // Scales are far from the largest number, and so their inverses are normal.
    let quotient = divide(0x3f80_0000u32, select(is_normal, scale, 0x3f80_0000u32));
    select(is_normal, quotient, select(scale == 0u32, INFINITY, NAN))
}

#[cfg(test)]
mod tests {
    use burn_dist_kernels::float8::reference;

    use super::super::scale::scale;
    use super::*;

    const FORMATS: [Fp8; 2] = [Fp8::E4M3, Fp8::E5M2];

    fn check_encode(format: Fp8, bits: u32) {
        let expected = reference::encode(format, f32::from_bits(bits));
        assert_eq!(
            encode(bits, format),
            u32::from(expected),
            "{format} of {bits:#x}"
        );
    }

    fn check_scale(bits: u32) {
        for (format, power_of_two) in FORMATS.into_iter().flat_map(|f| [(f, false), (f, true)]) {
            let found = scale(bits, format, power_of_two);
            let expected = reference::scale(format, power_of_two, f32::from_bits(bits));
            let are_nan = expected.is_nan() && f32::from_bits(found).is_nan();
            assert!(
                are_nan || found == expected.to_bits(),
                "{format} of amax {bits:#x}"
            );
        }
    }

    /// One of each few thousand numbers, with all that is near a power of two.
    fn some_bits() -> impl Iterator<Item = u32> {
        let near = (0..512u32).flat_map(|exponent| {
            let start = exponent << 23;
            (0..4).flat_map(move |by| [start.wrapping_add(by), start.wrapping_sub(by)])
        });
        (0..1 << 20u32)
            .map(|index: u32| index.wrapping_mul(4099))
            .chain(near)
    }

    #[test]
    fn casts_are_those_of_the_reference() {
        for format in FORMATS {
            for code in 0..=u8::MAX {
                let found = f32::from_bits(decode(code.into(), format));
                let expected = reference::decode(format, code);
                let are_nan = found.is_nan() && expected.is_nan();
                assert!(
                    are_nan || found.to_bits() == expected.to_bits(),
                    "{code:#x}"
                );
            }
            some_bits().for_each(|bits| check_encode(format, bits));
        }
    }

    #[test]
    fn scales_are_those_of_the_reference() {
        some_bits().for_each(check_scale);
    }

    #[test]
    #[ignore = "all numbers of 32 bits take minutes"]
    fn all_casts_and_scales_are_those_of_the_reference() {
        for bits in 0..=u32::MAX {
            FORMATS
                .into_iter()
                .for_each(|format| check_encode(format, bits));
            check_scale(bits);
        }
    }

    #[test]
    fn inverses_are_rounded_once() {
        let least = reference::scale(Fp8::E4M3, true, f32::MAX).to_bits();
        let most = reference::scale(Fp8::E5M2, false, 0.0).to_bits();
        for bits in some_bits().filter(|bits| (least..=most).contains(bits)) {
            assert_eq!(
                inverse(bits),
                f32::from_bits(bits).recip().to_bits(),
                "{bits:#x}"
            );
        }
        assert_eq!(inverse(0), INFINITY);
        assert!(inverse(NAN) == NAN && inverse(INFINITY) == NAN);
    }
}
