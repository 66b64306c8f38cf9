//! Float8, as it is defined, on the host. Casts go to the nearest value, of two to the even one; what is too large
//! becomes the largest finite value.
//!
//! Written here instead of taken from a crate: it is thirty lines, and what it gives for every input is tested.

use burn_dist_plan::policy::Fp8;

/// Bits of the mantissa, and the exponent of the smallest normal number.
const fn parts(format: Fp8) -> (u32, i32) {
    match format {
        Fp8::E4M3 => (3, -6),
        Fp8::E5M2 => (2, -14),
    }
}

/// Returns a value in 8 bits: the nearest one, of two the one with an even mantissa. Values beyond the largest finite
/// one, infinities among them, become that one; NaN stays NaN.
pub fn encode(format: Fp8, value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let (mantissa_bits, exponent_min) = parts(format);
    let magnitude = value.abs().min(format.max());
    let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
    // The distance of neighbours: below the smallest normal number, that of subnormal ones.
    let unit_exponent = exponent.max(exponent_min) - mantissa_bits as i32;
    // Exact: a power of two away, and far from f32's own subnormals where the result is not zero.
    let units = f64::from(magnitude) * 2f64.powi(-unit_exponent);
    let units = units.round_ties_even() as u32;
    // The units of a normal number start with its leading one, which counts as one of the exponent.
    let base = (exponent.max(exponent_min) - exponent_min) as u32;
    let bits = (base << mantissa_bits) + units;
    sign | bits as u8
}

/// Returns the value of 8 bits, which f32 has exactly.
pub fn decode(format: Fp8, bits: u8) -> f32 {
    let (mantissa_bits, exponent_min) = parts(format);
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let magnitude = u32::from(bits & 0x7f);
    let exponent = magnitude >> mantissa_bits;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    let is_special = match format {
        Fp8::E4M3 => magnitude == 0x7f,
        Fp8::E5M2 => exponent == 0x1f,
    };
    if is_special {
        let is_infinite = format == Fp8::E5M2 && mantissa == 0;
        return if is_infinite {
            sign * f32::INFINITY
        } else {
            f32::NAN
        };
    }
    let units = match exponent {
        0 => mantissa,
        _ => mantissa | 1 << mantissa_bits,
    };
    let unit_exponent = exponent.max(1) as i32 - 1 + exponent_min - mantissa_bits as i32;
    sign * units as f32 * 2f32.powi(unit_exponent)
}

/// The least absolute maximum that scales are made for (torchao's): a tensor of zeros has a finite scale.
pub const AMAX_MIN: f32 = 1e-12;

/// Returns the larger one; NaN if either is.
pub fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// Returns what brings values up to `amax` to the largest of a format. NaN stays NaN; infinity gives zero, and so NaN
/// for every value.
pub fn scale(format: Fp8, power_of_two: bool, amax: f32) -> f32 {
    let amax = larger(amax, AMAX_MIN);
    let scale = (f64::from(format.max()) / f64::from(amax)) as f32;
    match power_of_two && scale.is_normal() {
        true => f32::from_bits(scale.to_bits() & 0xff80_0000),
        false => scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Fp8; 2] = [Fp8::E4M3, Fp8::E5M2];

    /// The finite values of a format that are not negative, in order, with their bits.
    fn values(format: Fp8) -> Vec<(f64, u8)> {
        (0..0x80)
            .map(|bits| (f64::from(decode(format, bits)), bits))
            .filter(|(value, _)| value.is_finite())
            .collect()
    }

    /// The nearest value by search, of two the even one.
    fn nearest(values: &[(f64, u8)], value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = f64::from(value.abs());
        let next = values.partition_point(|(other, _)| *other < magnitude);
        let found = match (next.checked_sub(1).map(|at| values[at]), values.get(next)) {
            (Some((below, bits)), Some(&(above, next_bits))) => {
                match (magnitude - below).partial_cmp(&(above - magnitude)) {
                    Some(std::cmp::Ordering::Less) => bits,
                    Some(std::cmp::Ordering::Greater) => next_bits,
                    _ => bits + (bits & 1),
                }
            }
            (None, Some(&(_, bits))) | (Some((_, bits)), None) => bits,
            (None, None) => unreachable!("a format has values"),
        };
        sign | found
    }

    fn check(format: Fp8, values: &[(f64, u8)], value: f32) {
        let found = encode(format, value);
        match value.is_nan() {
            true => assert!(
                decode(format, found).is_nan(),
                "{format} of NaN: {found:#x}"
            ),
            false => assert_eq!(found, nearest(values, value), "{format} of {value:e}"),
        }
    }

    #[test]
    fn the_largest_and_smallest_values_are_those_of_the_formats() {
        let ends = |format| {
            let values = values(format);
            (values[1].0, values.last().expect("values").0, values.len())
        };
        assert_eq!(ends(Fp8::E4M3), (2f64.powi(-9), 448.0, 127));
        assert_eq!(ends(Fp8::E5M2), (2f64.powi(-16), 57344.0, 124));
        for format in FORMATS {
            assert_eq!(
                values(format).last().expect("values").0 as f32,
                format.max()
            );
            assert!(values(format).windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }

    #[test]
    fn every_value_comes_back() {
        for format in FORMATS {
            for bits in 0..=u8::MAX {
                let value = decode(format, bits);
                match value.is_finite() {
                    true => assert_eq!(encode(format, value), bits),
                    false if value.is_nan() => {
                        assert!(decode(format, encode(format, value)).is_nan());
                    }
                    false => assert_eq!(decode(format, encode(format, value)).abs(), format.max()),
                }
            }
        }
    }

    #[test]
    fn all_values_of_16_bits() {
        for format in FORMATS {
            let values = values(format);
            for bits in 0..=u16::MAX {
                check(format, &values, half::bf16::from_bits(bits).to_f32());
                check(format, &values, half::f16::from_bits(bits).to_f32());
            }
        }
    }

    /// Where rounding turns: halfway between neighbours, and one step of f32 to either side; and the values themselves.
    #[test]
    fn every_boundary_of_f32() {
        for format in FORMATS {
            let values = values(format);
            let max = f64::from(format.max());
            let halfway = values.windows(2).map(|pair| (pair[0].0 + pair[1].0) / 2.0);
            let points = values.iter().map(|(value, _)| *value);
            for point in halfway
                .chain(points)
                .chain([max * 1.01, max * 1.07, max * 2.0])
            {
                let point = point as f32;
                for near in [point.next_down(), point, point.next_up()] {
                    check(format, &values, near);
                    check(format, &values, -near);
                }
            }
        }
    }

    #[test]
    fn specials() {
        for format in FORMATS {
            let of = |value| decode(format, encode(format, value));
            assert_eq!(of(f32::INFINITY), format.max());
            assert_eq!(of(f32::NEG_INFINITY), -format.max());
            assert!(of(f32::NAN).is_nan() && of(-f32::NAN).is_nan());
            assert_eq!(of(f32::MAX), format.max());
            assert_eq!(of(f32::MIN_POSITIVE), 0.0);
            assert_eq!(of(f32::from_bits(1)), 0.0);
            assert_eq!(of(-0.0).to_bits(), (-0.0f32).to_bits());
            assert_eq!(of(0.0).to_bits(), 0);
        }
    }
}
