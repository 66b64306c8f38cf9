//! From random words to samples of a distribution of floats.

use super::{Draw, Philox};

/// How samples that are f32 are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Samples {
    /// Between two bounds.
    Uniform(Uniform),
    /// About a mean.
    Normal(Normal),
    /// One or zero.
    Bernoulli(Bernoulli),
}

impl Samples {
    /// Makes the samples from a flat index on.
    pub fn fill(&self, philox: &Philox, index: usize, samples: &mut [f32]) {
        match self {
            Self::Uniform(draw) => philox.fill(draw, index, samples),
            Self::Normal(draw) => philox.fill(draw, index, samples),
            Self::Bernoulli(draw) => philox.fill(draw, index, samples),
        }
    }
}

/// Makes a sample of each value.
#[inline(always)]
fn each<T: Copy, const N: usize>(values: &[[T; N]; 4], of: impl Fn(T) -> f32) -> [[f32; N]; 4] {
    let mut samples = [[0.0; N]; 4];
    let all = samples.as_flattened_mut().iter_mut();
    for (sample, value) in all.zip(values.as_flattened()) {
        *sample = of(*value);
    }
    samples
}

/// A uniform number in `[0, 1)`, a multiple of 2^-24.
#[inline(always)]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Uniform floats on `[low, low + width)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniform {
    /// The lower bound.
    pub low: f32,
    /// How far above it the upper bound is.
    pub width: f32,
    /// The largest sample: rounding must not reach the upper bound.
    pub last: f32,
}

impl Draw<f32, 4> for Uniform {
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
        each(words, |word| {
            (self.low + self.width * unit(word)).min(self.last)
        })
    }
}

/// One with some probability, else zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bernoulli {
    /// A word below this is a success.
    pub threshold: u32,
    /// True if every word is.
    pub is_certain: bool,
}

impl Draw<f32, 4> for Bernoulli {
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
        each(words, |word| {
            match (word < self.threshold) | self.is_certain {
                true => 1.0,
                false => 0.0,
            }
        })
    }
}

/// Normal floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    /// The mean.
    pub mean: f32,
    /// The standard deviation.
    pub std: f32,
}

impl Draw<f32, 4> for Normal {
    #[inline(always)]
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[f32; N]; 4] {
        each(&standard_normals(words), |z| self.mean + self.std * z)
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
}
