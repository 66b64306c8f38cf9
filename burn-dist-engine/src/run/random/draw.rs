//! From random words to samples of a distribution, and from those to elements of a dtype.
//!
//! Samples are f32, or the bits of an int: what draws them is compiled once, and not for each dtype.

use super::error::RandomError;
use super::philox::{Draw, Philox};
use burn_backend::{DType, Distribution, Element};
use burn_std::{bf16, f16};

/// Samples that are f32, of any distribution.
pub(super) enum Samples {
    Uniform(Uniform),
    Normal(Normal),
    Bernoulli(Bernoulli),
}

impl Samples {
    /// Returns those of a distribution of floats.
    pub(super) fn of_floats<T: Float>(distribution: Distribution) -> Result<Self, RandomError> {
        Ok(match distribution {
            Distribution::Default => Self::Uniform(Uniform::new::<T>(0.0, 1.0)?),
            Distribution::Uniform(low, high) => Self::Uniform(Uniform::new::<T>(low, high)?),
            Distribution::Normal(mean, std) => Self::Normal(Normal::new(mean, std)?),
            Distribution::Bernoulli(p) => Self::Bernoulli(Bernoulli::new(p)?),
        })
    }

    /// Makes the samples from a flat index on.
    pub(super) fn fill(&self, philox: &Philox, index: usize, samples: &mut [f32]) {
        match self {
            Self::Uniform(draw) => philox.fill(draw, index, samples),
            Self::Normal(draw) => philox.fill(draw, index, samples),
            Self::Bernoulli(draw) => philox.fill(draw, index, samples),
        }
    }
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

/// A uniform number in `[0, 1)`, a multiple of 2^-24.
#[inline(always)]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Uniform floats on `[low, high)`.
pub(super) struct Uniform {
    low: f32,
    width: f32,
    /// The largest value of the dtype below the upper bound: rounding must not reach it.
    last: f32,
}

impl Uniform {
    /// Returns samples for a dtype that they are cast to.
    pub(super) fn new<T: Float>(low: f64, high: f64) -> Result<Self, RandomError> {
        Self::up_to(T::below(high as f32), low, high, T::dtype())
    }

    fn up_to(last: f32, low: f64, high: f64, dtype: DType) -> Result<Self, RandomError> {
        let empty = RandomError::EmptyRange { low, high, dtype };
        let (low, high) = (low as f32, high as f32);
        let width = high - low;
        // NaN and infinite bounds fail the comparisons.
        match low < high && width.is_finite() && low <= last {
            true => Ok(Self { low, width, last }),
            false => Err(empty),
        }
    }
}

impl Draw<f32, 4> for Uniform {
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
        words.map(|word| word.map(|word| (self.low + self.width * unit(word)).min(self.last)))
    }
}

/// One with some probability, else zero.
pub(super) struct Bernoulli {
    /// A word below this is a success.
    threshold: u32,
    /// True if every word is.
    is_certain: bool,
}

impl Bernoulli {
    pub(super) fn new(probability: f64) -> Result<Self, RandomError> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(RandomError::Probability { probability });
        }
        Ok(Self {
            threshold: (probability * (1u64 << 32) as f64) as u32,
            is_certain: probability == 1.0,
        })
    }
}

impl Draw<f32, 4> for Bernoulli {
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
        words.map(|word| {
            word.map(|word| match (word < self.threshold) | self.is_certain {
                true => 1.0,
                false => 0.0,
            })
        })
    }
}

/// Normal floats.
pub(super) struct Normal {
    mean: f32,
    std: f32,
}

impl Normal {
    pub(super) fn new(mean: f64, std: f64) -> Result<Self, RandomError> {
        if !(mean as f32).is_finite() || !(std as f32).is_finite() {
            return Err(RandomError::NotFinite { mean, std });
        }
        Ok(Self {
            mean: mean as f32,
            std: std as f32,
        })
    }
}

impl Draw<f32, 4> for Normal {
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
        standard_normals(words).map(|lane| lane.map(|z| self.mean + self.std * z))
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
        core::array::from_fn(|sample| {
            core::array::from_fn(|n| {
                let (low, high) = (words[2 * sample][n], words[2 * sample + 1][n]);
                let word = u64::from(low) | u64::from(high) << 32;
                // Modular: so are the lower bits of the sum.
                self.low.wrapping_add(match self.count {
                    0 => word,
                    count => ((u128::from(word) * u128::from(count)) >> 64) as u64,
                })
            })
        })
    }
}

/// Four standard normal numbers per counter, by Box-Muller on its two pairs of words.
#[inline(always)]
fn standard_normals<const N: usize>(words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
    let mut normals = [[0.0; N]; 4];
    for pair in [0, 2] {
        for n in 0..N {
            // In (0, 1]: half a step up, so that the logarithm is finite. The largest |z| is sqrt(-2 ln 2^-33) = 6.8.
            let u = words[pair][n] as f32 * STEP + 0.5 * STEP;
            let radius = (-2.0 * ln(u)).sqrt();
            let (sin, cos) = sin_cos_turn(words[pair + 1][n]);
            normals[pair][n] = radius * cos;
            normals[pair + 1][n] = radius * sin;
        }
    }
    normals
}

/// 2^-32.
const STEP: f32 = 1.0 / (1u64 << 32) as f32;

/// The natural logarithm of a positive normal number, to about 1e-7 relative or absolute, by additions and
/// multiplications only: the polynomial of the Cephes library.
#[inline(always)]
fn ln(x: f32) -> f32 {
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits() as i32 - 0x3f35_04f3;
    let e = (bits >> 23) as f32;
    let m = f32::from_bits(((bits & 0x007f_ffff) + 0x3f35_04f3) as u32);
    let t = m - 1.0;
    let square = t * t;
    let mut p = 7.037_683_6e-2;
    for coefficient in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * t + coefficient;
    }
    // ln 2 in two parts, of which the first is exact in e times itself.
    let low = p * t * square - 2.121_944_4e-4 * e - 0.5 * square;
    low + t + 0.693_359_4 * e
}

/// Sine and cosine of `word / 2^32` of a full turn, to about 1e-7, by additions and multiplications only: the
/// polynomials of the Cephes library on an eighth of a turn to both sides.
#[inline(always)]
fn sin_cos_turn(word: u32) -> (f32, f32) {
    // The nearest quarter turn and the rest in [-1/8, 1/8) of a turn.
    let quarter = word.wrapping_add(1 << 29) >> 30;
    let rest = word.wrapping_sub(quarter << 30) as i32;
    let x = rest as f32 * (core::f32::consts::TAU * STEP);
    let square = x * x;
    let sin =
        ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1) * square * x + x;
    let cos =
        ((2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2) * square * square
            - 0.5 * square
            + 1.0;
    // Rotate: (sin, cos) -> (cos, -sin) per quarter turn.
    let (s, c) = if quarter & 1 == 0 {
        (sin, cos)
    } else {
        (cos, sin)
    };
    let sign = |negative: u32, value: f32| f32::from_bits(value.to_bits() ^ (negative << 31));
    (
        sign(quarter >> 1, s),
        sign((quarter ^ (quarter >> 1)) & 1, c),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elementary_functions_agree_with_libm() {
        for i in 0..100_000u32 {
            let word = i.wrapping_mul(2_654_435_761);
            let turn = f64::from(word) / 4_294_967_296.0 * core::f64::consts::TAU;
            let (sin, cos) = sin_cos_turn(word);
            assert!((f64::from(sin) - turn.sin()).abs() < 2e-7, "{word}");
            assert!((f64::from(cos) - turn.cos()).abs() < 2e-7, "{word}");
            let x = word as f32 * STEP + 0.5 * STEP;
            let want = f64::from(x).ln();
            assert!(
                (f64::from(ln(x)) - want).abs() < 2e-7 * want.abs().max(1.0),
                "{x}"
            );
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn uniform_stays_below_its_bound_in_every_dtype() {
        fn largest<T: Float>(low: f64, high: f64) -> f64 {
            let uniform = Uniform::new::<T>(low, high).unwrap();
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
