//! Elements as bits of f32, which f16 and bf16 are part of: with integers alone, so that a device needs no such types and
//! nothing is lost of subnormal numbers and NaN.

use cubecl::prelude::*;

/// The bits of an infinity in f32; those of NaN are larger, without the sign.
pub(crate) const INFINITY: u32 = 0x7f80_0000;
/// The bits of NaN in f32.
pub(crate) const NAN: u32 = 0x7fc0_0000;

/// The type of elements that kernels read, and whose bits they take from words of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32 bits.
    F32,
    /// 16 bits, 5 of them the exponent.
    F16,
    /// The upper 16 bits of 32.
    Bf16,
}

impl Element {
    /// Returns how many of them are in a word.
    pub const fn per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Returns the bits in f32 of an element: number `index` of those in a word.
#[cube]
pub(crate) fn widen(word: u32, index: u32, #[comptime] element: Element) -> u32 {
    match comptime!(element) {
        Element::F32 => word,
        Element::Bf16 => (word >> (index * 16u32)) << 16u32,
        Element::F16 => widen_f16((word >> (index * 16u32)) & 0xffffu32),
    }
}

/// Returns the bits in f32 of 16 bits.
#[cube]
fn widen_f16(half: u32) -> u32 {
    let magnitude = half & 0x7fffu32;
    let normal = (magnitude << 13u32) + comptime!((127u32 - 15) << 23);
    // Infinity and NaN: the largest exponent of the one is that of the other.
    let special = (magnitude << 13u32) | INFINITY;
    // Below the smallest normal number: up to ten places until the leading one.
    let mut fraction = magnitude;
    let mut exponent = 113u32;
    for _ in 0..10u32 {
        let is_short = fraction < 0x400u32;
        fraction = select(is_short, fraction << 1u32, fraction);
        exponent = select(is_short, exponent - 1u32, exponent);
    }
    let subnormal = (exponent << 23u32) | ((fraction & 0x3ffu32) << 13u32);
    let subnormal = select(magnitude == 0u32, 0u32, subnormal);
    let finite = select(magnitude < 0x400u32, subnormal, normal);
    select(magnitude >= 0x7c00u32, special, finite) | ((half & 0x8000u32) << 16u32)
}

/// Returns the bits of an f32 rounded to an element.
#[cube]
pub(crate) fn narrow(bits: u32, #[comptime] element: Element) -> u32 {
    match comptime!(element) {
        Element::F32 => bits,
        Element::Bf16 => {
            let rounded = (bits + 0x7fffu32 + ((bits >> 16u32) & 1u32)) >> 16u32;
            select(
                (bits & 0x7fff_ffffu32) > INFINITY,
                (bits >> 16u32) | 0x40u32,
                rounded,
            )
        }
        Element::F16 => narrow_f16(bits),
    }
}

/// Returns the 16 bits of an f32.
#[cube]
fn narrow_f16(bits: u32) -> u32 {
    let normal_min = comptime!((127u32 - 14) << 23);
    let magnitude = bits & 0x7fff_ffffu32;
    let large = select(magnitude < normal_min, normal_min, magnitude);
    let normal =
        ((large + 0xfffu32 + ((large >> 13u32) & 1u32)) >> 13u32) - comptime!((127u32 - 15) << 10);
    // Whole units, each a bit further to the right for each step of the exponent.
    let small = select(magnitude < normal_min, magnitude, normal_min - 1u32);
    let away = 126u32 - (small >> 23u32);
    let shift = select(away > 31u32, 31u32, away);
    let whole = (small & 0x7f_ffffu32) | 0x80_0000u32;
    let below_half = (1u32 << (shift - 1u32)) - 1u32;
    let subnormal = (whole + below_half + ((whole >> shift) & 1u32)) >> shift;
    let half = select(magnitude < normal_min, subnormal, normal);
    // From halfway beyond the largest number on.
    let half = select(magnitude >= 0x477f_f000u32, 0x7c00u32, half);
    let half = select(magnitude > INFINITY, 0x7e00u32, half);
    half | ((bits >> 16u32) & 0x8000u32)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn elements_of_16_bits_are_widened() {
        for bits in 0..=u16::MAX {
            let (word, shifted) = (u32::from(bits), u32::from(bits) << 16);
            for (element, expected) in [
                (Element::Bf16, bf16::from_bits(bits).to_f32()),
                (Element::F16, f16::from_bits(bits).to_f32()),
            ] {
                for (word, index) in [(word, 0), (shifted, 1)] {
                    let found = f32::from_bits(widen(word, index, element));
                    let are_nan = found.is_nan() && expected.is_nan();
                    assert!(
                        are_nan || found.to_bits() == expected.to_bits(),
                        "{bits:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_16_bits() {
        for bits in (0..1 << 22u32).map(|index: u32| index.wrapping_mul(1021)) {
            let value = f32::from_bits(bits);
            let found = bf16::from_bits(narrow(bits, Element::Bf16) as u16);
            let expected = bf16::from_f32(value);
            assert!(
                found.to_bits() == expected.to_bits() || value.is_nan() && found.is_nan(),
                "{bits:#x}"
            );
            let found = f16::from_bits(narrow(bits, Element::F16) as u16);
            let expected = f16::from_f32(value);
            assert!(
                found.to_bits() == expected.to_bits() || value.is_nan() && found.is_nan(),
                "{bits:#x}"
            );
        }
    }
}
