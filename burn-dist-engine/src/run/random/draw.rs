//! Samples of a distribution of Burn's, and elements of a dtype that they become.
//!
//! Samples are f32, or the bits of an int: what draws them is compiled once, and not for each dtype.

use super::error::RandomError;
use burn_backend::{DType, Distribution, Element};
use burn_dist_kernels::random::{Bernoulli, Draw, Normal, Samples, Uniform};
use burn_std::{bf16, f16};

/// Returns the samples of a distribution, for floats that they are cast to.
pub(super) fn of_floats<T: Float>(distribution: Distribution) -> Result<Samples, RandomError> {
    Ok(match distribution {
        Distribution::Default => Samples::Uniform(uniform::<T>(0.0, 1.0)?),
        Distribution::Uniform(low, high) => Samples::Uniform(uniform::<T>(low, high)?),
        Distribution::Normal(mean, std) => normal(mean, std)?,
        Distribution::Bernoulli(probability) => bernoulli(probability)?,
    })
}

/// A float dtype: f32 is cast to it.
pub(super) trait Float: Element + bytemuck::Pod {
    fn of(sample: f32) -> Self;
    /// The largest value of the dtype below a finite `value`, as f32.
    fn below(value: f32) -> f32;
}

impl Float for f32 {
    #[inline]
    fn of(sample: f32) -> Self {
        sample
    }
    fn below(value: f32) -> f32 {
        value.next_down()
    }
}

impl Float for f64 {
    #[inline]
    fn of(sample: f32) -> Self {
        f64::from(sample)
    }
    /// Samples are f32 before the cast.
    fn below(value: f32) -> f32 {
        value.next_down()
    }
}

macro_rules! half_floats {
    ($($float:ty)*) => {$(
        impl Float for $float {
            #[inline]
            fn of(sample: f32) -> Self {
                <$float>::from_f32(sample)
            }
            fn below(value: f32) -> f32 {
                let rounded = <$float>::from_f32(value);
                if rounded.to_f32() < value {
                    rounded.to_f32()
                } else {
                    <$float>::from_bits(next_down(rounded.to_bits())).to_f32()
                }
            }
        }
    )*};
}

half_floats! { f16 bf16 }

/// The bits of the next smaller value of a 16-bit float: sign and magnitude.
fn next_down(bits: u16) -> u16 {
    const SIGN: u16 = 0x8000;
    match bits {
        0 | SIGN => SIGN | 1,
        bits if bits & SIGN == 0 => bits - 1,
        bits => bits + 1,
    }
}

/// An int dtype.
pub(super) trait Int: Element + bytemuck::Pod {
    /// The smallest and the largest value.
    const RANGE: [i128; 2];
    /// Truncates towards zero, and to the range of the dtype.
    fn of(sample: f32) -> Self;
    /// The value whose bits are the lower ones of `bits`.
    fn of_bits(bits: u64) -> Self;
}

macro_rules! ints {
    ($($int:ty)*) => {$(
        impl Int for $int {
            const RANGE: [i128; 2] = [<$int>::MIN as i128, <$int>::MAX as i128];
            #[inline]
            fn of(sample: f32) -> Self { sample as $int }
            #[inline]
            fn of_bits(bits: u64) -> Self { bits as $int }
        }
    )*};
}

ints! { i64 i32 i16 i8 u64 u32 u16 u8 }

/// Returns uniform samples on `[low, high)`.
fn uniform<T: Float>(low: f64, high: f64) -> Result<Uniform, RandomError> {
    uniform_up_to(T::below(high as f32), low, high, T::dtype())
}

fn uniform_up_to(last: f32, low: f64, high: f64, dtype: DType) -> Result<Uniform, RandomError> {
    let empty = RandomError::EmptyRange { low, high, dtype };
    let (low, high) = (low as f32, high as f32);
    let width = high - low;
    // NaN and infinite bounds fail the comparisons.
    match low < high && width.is_finite() && low <= last {
        true => Ok(Uniform { low, width, last }),
        false => Err(empty),
    }
}

/// Returns samples that are one with a probability.
pub(super) fn bernoulli(probability: f64) -> Result<Samples, RandomError> {
    match (0.0..=1.0).contains(&probability) {
        true => Ok(Samples::Bernoulli(Bernoulli {
            threshold: (probability * (1u64 << 32) as f64) as u32,
            is_certain: probability == 1.0,
        })),
        false => Err(RandomError::Probability { probability }),
    }
}

/// Returns normal samples.
pub(super) fn normal(mean: f64, std: f64) -> Result<Samples, RandomError> {
    match (mean as f32).is_finite() && (std as f32).is_finite() {
        true => Ok(Samples::Normal(Normal {
            mean: mean as f32,
            std: std as f32,
        })),
        false => Err(RandomError::NotFinite { mean, std }),
    }
}

/// Uniform ints on `[low, low + count)`, as bits of which a dtype takes the lower ones.
pub(super) struct IntUniform {
    low: u64,
    /// Zero stands for all 2^64.
    count: u64,
}

impl IntUniform {
    /// Every value of T.
    pub(super) fn whole<T: Int>() -> Self {
        let [least, most] = T::RANGE;
        Self::between(least, most + 1)
    }

    /// The ints of `[trunc(low), trunc(high))` that T has.
    pub(super) fn new<T: Int>(low: f64, high: f64) -> Result<Self, RandomError> {
        let [least, most] = T::RANGE;
        let [first, end] = [low, high].map(|bound| (bound as i128).clamp(least, most));
        match low < high && (high - low).is_finite() && first < end {
            true => Ok(Self::between(first, end)),
            false => Err(RandomError::EmptyRange {
                low,
                high,
                dtype: T::dtype(),
            }),
        }
    }

    fn between(first: i128, end: i128) -> Self {
        Self {
            low: first as u64,
            count: (end - first) as u64,
        }
    }
}

impl Draw<u64, 2> for IntUniform {
    /// Takes 64 bits per sample, so that the bias of scaling them down to `count` values is below `count / 2^64`.
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[u64; N]; 2] {
        let mut samples = [[0; N]; 2];
        for (sample, samples) in samples.iter_mut().enumerate() {
            for (n, to) in samples.iter_mut().enumerate() {
                let (low, high) = (words[2 * sample][n], words[2 * sample + 1][n]);
                let word = u64::from(low) | u64::from(high) << 32;
                // Modular: so are the lower bits of the sum.
                *to = self.low.wrapping_add(match self.count {
                    0 => word,
                    count => ((u128::from(word) * u128::from(count)) >> 64) as u64,
                });
            }
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_stays_below_its_bound_in_every_dtype() {
        fn largest<T: Float>(low: f64, high: f64) -> f64 {
            let uniform = uniform::<T>(low, high).unwrap();
            let [[sample], ..] = uniform.draw(&[[u32::MAX], [0], [0], [0]]);
            T::of(sample).elem::<f64>()
        }
        for (low, high) in [
            (0.0, 1.0),
            (-3.0, -1.0),
            (-1.0, 0.0),
            (2.0, 2.01),
            (0.0, 1.003),
        ] {
            for largest in [
                largest::<f32>(low, high),
                largest::<f64>(low, high),
                largest::<f16>(low, high),
                largest::<bf16>(low, high),
            ] {
                assert!(largest < f64::from(high as f32), "{largest} of {high}");
                assert!(largest >= low - (high - low), "{largest} of {low}");
            }
        }
        assert_eq!(largest::<bf16>(0.0, 1.0), 1.0 - 1.0 / 256.0);
        assert_eq!(largest::<f16>(0.0, 1.0), 1.0 - 1.0 / 2048.0);
        // A bound that the dtype does not have: the value below it is near.
        assert_eq!(largest::<bf16>(0.0, 1.003), 1.0);
    }
}
