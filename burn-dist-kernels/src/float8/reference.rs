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
    let magnitude = value.abs().min(format.max()).to_bits();
    let exponent = (magnitude >> 23) as i32 - 127;
    // Bits of the mantissa beyond those of the format, which has fewer of a value below its smallest normal one. Of 25
    // nothing is left: less than half of the smallest value.
    let shift = (23 - mantissa_bits as i32 + (exponent_min - exponent).max(0)).min(25) as u32;
    let mantissa = magnitude & 0x7f_ffff | 0x80_0000;
    let (units, rest, half) = (
        mantissa >> shift,
        mantissa & ((1 << shift) - 1),
        1 << (shift - 1),
    );
    let is_up = rest > half || rest == half && units & 1 == 1;
    // The units of a normal number start with its leading one, which counts as one of the exponent.
    let base = (exponent.max(exponent_min) - exponent_min) as u32;
    sign | ((base << mantissa_bits) + units + u32::from(is_up)) as u8
}

/// Returns the value of 8 bits, which f32 has exactly.
pub fn decode(format: Fp8, bits: u8) -> f32 {
    static E4M3: [f32; 256] = values(Fp8::E4M3);
    static E5M2: [f32; 256] = values(Fp8::E5M2);
    match format {
        Fp8::E4M3 => E4M3[usize::from(bits)],
        Fp8::E5M2 => E5M2[usize::from(bits)],
    }
}

/// The values of all 8 bits.
const fn values(format: Fp8) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut bits = 0;
    while bits < values.len() {
        values[bits] = value(format, bits as u8);
        bits += 1;
    }
    values
}

/// The value of 8 bits by the definition of their format.
const fn value(format: Fp8, bits: u8) -> f32 {
    let (mantissa_bits, exponent_min) = parts(format);
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let magnitude = (bits & 0x7f) as u32;
    let exponent = magnitude >> mantissa_bits;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    match format {
        Fp8::E4M3 if magnitude == 0x7f => return f32::NAN,
        Fp8::E5M2 if exponent == 0x1f && mantissa == 0 => return sign * f32::INFINITY,
        Fp8::E5M2 if exponent == 0x1f => return f32::NAN,
        _ => {}
    }
    let (units, exponent) = match exponent {
        0 => (mantissa, 1),
        _ => (mantissa | 1 << mantissa_bits, exponent),
    };
    let unit_exponent = exponent as i32 - 1 + exponent_min - mantissa_bits as i32;
    let unit = f32::from_bits(((unit_exponent + 127) as u32) << 23);
    sign * units as f32 * unit
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
