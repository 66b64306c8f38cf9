//! Floats of 16 bits, in plain arithmetic on bits so that loops of it run in vectors.

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Half {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
}

#[inline(always)]
pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest, halves to even.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

#[inline(always)]
pub(super) fn from_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    // 2^112 moves the exponent from the bias of 15 to that of 127, and makes subnormal numbers normal.
    let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let infinite = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    f32::from_bits(scaled | infinite | quiet | u32::from(bits & 0x8000) << 16)
}

/// Rounds to the nearest, halves to even.
///
/// # Source
/// Fabian Giesen, `float_to_half_fast3_rtne` (public domain).
#[inline(always)]
pub(super) fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Adding one half rounds what is below the least normal number at the place of its last bit.
    const HALF: f32 = 0.5;
    let small = (f32::from_bits(magnitude) + HALF)
        .to_bits()
        .wrapping_sub(HALF.to_bits());
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_add((15u32.wrapping_sub(127) << 23) + 0xfff + odd) >> 13;
    let large = if magnitude > 0x7f80_0000 {
        0x7e00
    } else {
        0x7c00
    };
    let made = if magnitude >= 143 << 23 {
        large
    } else if magnitude < 113 << 23 {
        small
    } else {
        normal
    };
    (made | sign) as u16
}

/// Rounds a number to one of 16 bits.
#[inline(always)]
pub(super) fn rounded_bf16(x: f32) -> f32 {
    from_bf16(to_bf16(x))
}

/// Rounds a number to one of 16 bits.
#[inline(always)]
pub(super) fn rounded_f16(x: f32) -> f32 {
    from_f16(to_f16(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_16_bits_there_and_back() {
        for bits in 0..=u16::MAX {
            for (found, expected) in [
                (from_f16(bits), half::f16::from_bits(bits).to_f32()),
                (from_bf16(bits), half::bf16::from_bits(bits).to_f32()),
            ] {
                assert!(
                    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
                );
            }
            if !half::f16::from_bits(bits).is_nan() {
                assert_eq!(to_f16(from_f16(bits)), bits);
            }
            if !half::bf16::from_bits(bits).is_nan() {
                assert_eq!(to_bf16(from_bf16(bits)), bits);
            }
        }
    }

    #[test]
    fn rounds_as_the_crate_half() {
        let mut bits = 0u32;
        loop {
            let x = f32::from_bits(bits);
            let (f16, bf16) = (half::f16::from_f32(x), half::bf16::from_f32(x));
            match x.is_nan() {
                true => assert!(from_f16(to_f16(x)).is_nan() && from_bf16(to_bf16(x)).is_nan()),
                false => assert_eq!(
                    [to_f16(x), to_bf16(x)],
                    [f16.to_bits(), bf16.to_bits()],
                    "{x:e}"
                ),
            }
            // A prime step, so that all patterns of low bits come up.
            match bits.checked_add(997) {
                Some(next) => bits = next,
                None => break,
            }
        }
    }
}
