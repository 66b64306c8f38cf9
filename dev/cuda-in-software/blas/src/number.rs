//! Elements of matrices.

use half::{bf16, f16};

/// `cudaDataType`, as far as there are products of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
}

impl Number {
    pub(crate) fn of(code: u32) -> Option<Self> {
        Some(match code {
            0 => Number::F32,
            2 => Number::F16,
            14 => Number::Bf16,
            28 => Number::E4m3,
            29 => Number::E5m2,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
            Number::E4m3 | Number::E5m2 => 1,
        }
    }

    /// Returns the value of element `at`.
    pub(crate) fn get(self, bytes: &[u8], at: usize) -> f32 {
        match self {
            Number::F32 => f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four")),
            Number::F16 => {
                f16::from_bits(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])).into()
            }
            Number::Bf16 => {
                bf16::from_bits(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])).into()
            }
            Number::E4m3 => small(bytes[at], 3, 7, |exponent, fraction| {
                exponent == 15 && fraction == 7
            }),
            // Its infinities are those of f16, of which it is the upper byte.
            Number::E5m2 => f16::from_bits(u16::from(bytes[at]) << 8).into(),
        }
    }

    /// Appends a value, rounded to the nearest; in 8 bits nothing is written.
    pub(crate) fn put(self, to: &mut Vec<u8>, value: f32) -> Option<()> {
        match self {
            Number::F32 => to.extend(value.to_le_bytes()),
            Number::F16 => to.extend(f16::from_f32(value).to_le_bytes()),
            Number::Bf16 => to.extend(bf16::from_f32(value).to_le_bytes()),
            Number::E4m3 | Number::E5m2 => return None,
        }
        Some(())
    }
}

/// The value of a number in 8 bits: a sign, an exponent with a bias, and a fraction.
fn small(bits: u8, fraction_bits: u32, bias: i32, is_nan: fn(i32, u8) -> bool) -> f32 {
    let fraction = bits & ((1 << fraction_bits) - 1);
    let exponent = i32::from((bits & 0x7f) >> fraction_bits);
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    if is_nan(exponent, fraction) {
        return f32::NAN;
    }
    let (whole, power) = match exponent {
        0 => (0, 1 - bias),
        exponent => (1 << fraction_bits, exponent - bias),
    };
    sign * (whole + i32::from(fraction)) as f32 * 2f32.powi(power - fraction_bits as i32)
}

#[cfg(test)]
mod tests {
    use super::Number;

    #[test]
    fn numbers_in_8_bits_are_those_of_their_tables() {
        for (bits, value) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xb9, -1.125),
        ] {
            assert_eq!(Number::E4m3.get(&[bits], 0), value, "{bits:#x}");
        }
        assert!(Number::E4m3.get(&[0x7f], 0).is_nan());
        for (bits, value) in [
            (0x01, 2f32.powi(-16)),
            (0x3c, 1.0),
            (0x7b, 57344.0),
            (0xfc, f32::NEG_INFINITY),
        ] {
            assert_eq!(Number::E5m2.get(&[bits], 0), value, "{bits:#x}");
        }
    }
}
