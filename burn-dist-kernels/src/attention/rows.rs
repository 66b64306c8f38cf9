//! The inner loops over rows of scores, compiled for the vectors of the machine at hand.
//!
//! Sums run in a fixed number of lanes and nothing is fused, so that results have the same bits on every machine.

use pulp::{Arch, NullaryFnOnce};

/// Lanes of sums and maxima.
const LANES: usize = 16;

/// The work of attention on rows.
pub trait Rows: Sized {
    /// Returns the largest element, or -infinity; NaN are passed over.
    fn largest(row: &[Self]) -> Self;

    /// Puts `exp(x - shift)` in the place of each element and returns their sum.
    fn exp_sum(row: &mut [Self], shift: Self) -> Self;

    /// Puts `exp(x - shift)` in the place of each element.
    fn exp_each(row: &mut [Self], shift: Self);

    /// Multiplies each element.
    fn scale(row: &mut [Self], factor: Self);

    /// Puts `weight * (gradient - mean)` in the place of each gradient: the backward of softmax.
    fn softmax_backward(gradients: &mut [Self], weights: &[Self], mean: Self);
}

macro_rules! rows {
    ($type:ty, $exp:path) => {
        impl Rows for $type {
            fn largest(row: &[Self]) -> Self {
                struct Largest<'a>(&'a [$type]);
                impl NullaryFnOnce for Largest<'_> {
                    type Output = $type;
                    #[inline(always)]
                    fn call(self) -> $type {
                        let larger = |a: $type, b: $type| if b > a { b } else { a };
                        let mut lanes = [<$type>::NEG_INFINITY; LANES];
                        let (blocks, rest) = self.0.as_chunks::<LANES>();
                        for block in blocks {
                            for (lane, x) in lanes.iter_mut().zip(block) {
                                *lane = larger(*lane, *x);
                            }
                        }
                        lanes
                            .iter()
                            .chain(rest)
                            .fold(<$type>::NEG_INFINITY, |a, b| larger(a, *b))
                    }
                }
                Arch::new().dispatch(Largest(row))
            }

            fn exp_sum(row: &mut [Self], shift: Self) -> Self {
                struct ExpSum<'a>(&'a mut [$type], $type);
                impl NullaryFnOnce for ExpSum<'_> {
                    type Output = $type;
                    #[inline(always)]
                    fn call(self) -> $type {
                        let mut lanes = [0.0; LANES];
                        let (blocks, rest) = self.0.as_chunks_mut::<LANES>();
                        for block in blocks {
                            for (lane, x) in lanes.iter_mut().zip(block) {
                                *x = $exp(*x - self.1);
                                *lane += *x;
                            }
                        }
                        for (lane, x) in lanes.iter_mut().zip(rest) {
                            *x = $exp(*x - self.1);
                            *lane += *x;
                        }
                        let mut width = LANES / 2;
                        while width > 0 {
                            for lane in 0..width {
                                lanes[lane] += lanes[lane + width];
                            }
                            width /= 2;
                        }
                        lanes[0]
                    }
                }
                Arch::new().dispatch(ExpSum(row, shift))
            }

            fn exp_each(row: &mut [Self], shift: Self) {
                struct Exp<'a>(&'a mut [$type], $type);
                impl NullaryFnOnce for Exp<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        for x in self.0 {
                            *x = $exp(*x - self.1);
                        }
                    }
                }
                Arch::new().dispatch(Exp(row, shift));
            }

            fn scale(row: &mut [Self], factor: Self) {
                struct Scale<'a>(&'a mut [$type], $type);
                impl NullaryFnOnce for Scale<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        for x in self.0 {
                            *x *= self.1;
                        }
                    }
                }
                Arch::new().dispatch(Scale(row, factor));
            }

            fn softmax_backward(gradients: &mut [Self], weights: &[Self], mean: Self) {
                struct Softmax<'a>(&'a mut [$type], &'a [$type], $type);
                impl NullaryFnOnce for Softmax<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        for (gradient, weight) in self.0.iter_mut().zip(self.1) {
                            *gradient = *weight * (*gradient - self.2);
                        }
                    }
                }
                Arch::new().dispatch(Softmax(gradients, weights, mean));
            }
        }
    };
}
rows!(f32, exp);
rows!(f64, f64::exp);

/// Returns e to the power of `x`, which is not positive but for rounding: to 2e-7 of it, below the least normal number
/// zero. In plain arithmetic, so that a loop of it runs in vectors.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to a whole number, which is in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first of which has zeros at its end: n times it is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // 1 / k! for the powers from 7 down.
    const TERMS: [f32; 6] = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let bounded = if x < -87.0 { -87.0 } else { x };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (bounded - n * LN_2[0]) - n * LN_2[1];
    let mut sum = TERMS[0];
    sum = sum * r + TERMS[1];
    sum = sum * r + TERMS[2];
    sum = sum * r + TERMS[3];
    sum = sum * r + TERMS[4];
    sum = sum * r + TERMS[5];
    let power = (sum * r * r + r) + 1.0;
    // The low bits of `shifted` are those of n, so the shift puts n into the exponent.
    let scaled = f32::from_bits((shifted.to_bits() << 23).wrapping_add(power.to_bits()));
    let scaled = if power.is_nan() { power } else { scaled };
    if x < -87.0 { 0.0 } else { scaled }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        let mut worst = 0f64;
        for step in 0..=2_000_000u32 {
            let x = -87.0 + step as f32 * (87.5 / 2_000_000.0);
            let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
            worst = worst.max((found - expected).abs() / expected);
        }
        assert!(worst < 2e-7, "{worst:e}");
    }

    #[test]
    fn exp_of_what_is_hidden_is_zero_and_of_nan_nan() {
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
    }

    #[test]
    fn rows_of_any_length() {
        for len in 0..70 {
            let row: Vec<f64> = (0..len).map(|i| -f64::from(i * 7 % 13) / 3.0).collect();
            let narrow: Vec<f32> = row.iter().map(|x| *x as f32).collect();
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(f64::largest(&row), largest);
            assert_eq!(f32::largest(&narrow), largest as f32);
            let sum: f64 = row.iter().map(|x| (x - 0.5).exp()).sum();
            let mut made = narrow.clone();
            let found = f32::exp_sum(&mut made, 0.5);
            assert!((f64::from(found) - sum).abs() <= 1e-6 * sum);
            let mut again = narrow;
            f32::exp_each(&mut again, 0.5);
            assert_eq!(made, again);
        }
    }
}
