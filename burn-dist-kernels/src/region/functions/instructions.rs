//! Instructions that loops are compiled with, where they are not those of plain arithmetic.

/// Instructions of a processor, or plain arithmetic that has the same bits.
pub(crate) trait Instructions: Copy {
    /// True if the processor has AVX.
    const AVX: bool;
    /// True if it has an instruction that multiplies and adds, rounding once.
    const FUSES: bool;

    /// Returns `x * y + z`, rounded once.
    fn fused(x: f32, y: f32, z: f32) -> f32;
}

/// The processor's own instruction: on AArch64, or where a build says that there is one. In tests, where loops may not
/// be compiled for it, it is a call.
#[derive(Clone, Copy, Debug)]
#[cfg(any(test, target_arch = "aarch64", target_feature = "fma"))]
pub(crate) struct Own;

#[cfg(any(test, target_arch = "aarch64", target_feature = "fma"))]
impl Instructions for Own {
    const AVX: bool = false;
    const FUSES: bool = true;

    #[inline(always)]
    fn fused(x: f32, y: f32, z: f32) -> f32 {
        x.mul_add(y, z)
    }
}

/// The processor's own instructions, AVX among them.
#[derive(Clone, Copy, Debug)]
#[cfg(target_arch = "x86_64")]
pub(crate) struct WithAvx;

#[cfg(target_arch = "x86_64")]
impl Instructions for WithAvx {
    const AVX: bool = true;
    const FUSES: bool = true;

    #[inline(always)]
    fn fused(x: f32, y: f32, z: f32) -> f32 {
        x.mul_add(y, z)
    }
}

/// Plain arithmetic of f64, for processors that have no such instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain;

impl Instructions for Plain {
    const AVX: bool = false;
    const FUSES: bool = false;

    /// The product is exact in f64. Its sum is rounded to odd: to the neighbour whose last bit is 1 where it is not
    /// exact, so that rounding to f32 afterwards sees on which side of a half the exact sum lies.
    ///
    /// # Source
    /// Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
    /// IEEE Transactions on Computers 57 (2008).
    #[inline(always)]
    fn fused(x: f32, y: f32, z: f32) -> f32 {
        let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
        let sum = product + z;
        // What the sum has lost (Knuth).
        let part = sum - product;
        let lost = (product - (sum - part)) + (z - part);
        let bits = sum.to_bits();
        let grows = (lost > 0.0) == (sum > 0.0);
        let odd = if grows {
            bits.wrapping_add(1)
        } else {
            bits.wrapping_sub(1)
        };
        // Of an infinite sum what is lost is not a number.
        let has_lost = lost.abs() > 0.0;
        (if has_lost && bits & 1 == 0 {
            f64::from_bits(odd)
        } else {
            sum
        }) as f32
    }
}

/// How loops are rounded that are compiled for every processor of the target.
#[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
pub(crate) type Portable = Own;
/// How loops are rounded that are compiled for every processor of the target.
#[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
pub(crate) type Portable = Plain;

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers with few and with many bits, near and far from each other.
    fn numbers(state: &mut u64) -> f32 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let bits = (*state >> 32) as u32;
        match *state % 5 {
            0 => f32::from_bits(bits),
            1 => f32::from_bits(bits & 0xfff0_0000),
            2 => f32::from_bits(bits & 0x807f_ffff | 0x3f80_0000),
            3 => f32::from_bits(bits & 0x8000_0fff),
            _ => f32::from_bits(bits & 0x81ff_ffff | 0x3f00_0000),
        }
    }

    #[test]
    fn plain_arithmetic_equals_the_instruction() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..2_000_000 {
            let (x, y, mut z) = (
                numbers(&mut state),
                numbers(&mut state),
                numbers(&mut state),
            );
            // The sum of a product and nearly its opposite.
            if state & 1 == 0 {
                z = -f32::from_bits((x * y).to_bits().wrapping_add((state >> 60) as u32));
            }
            let (found, expected) = (Plain::fused(x, y, z), Own::fused(x, y, z));
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{x:e} * {y:e} + {z:e} is {found:e}, not {expected:e}"
            );
        }
    }

    #[test]
    fn sums_near_a_half_round_to_their_side() {
        // 1 + 2^-24 lies half way between two numbers; a little more or less is not.
        let half = f32::from_bits(0x3380_0000);
        let little = f32::from_bits(0x0d80_0000);
        for (y, expected) in [
            (1.0, 1.0),
            (1.0 + f32::EPSILON, 1.0 + f32::EPSILON),
            (1.0 - f32::EPSILON / 2.0, 1.0),
        ] {
            assert_eq!(Plain::fused(half, y, 1.0), expected);
            assert_eq!(Own::fused(half, y, 1.0), expected);
        }
        assert_eq!(
            Plain::fused(little, little, half),
            Own::fused(little, little, half)
        );
    }
}
