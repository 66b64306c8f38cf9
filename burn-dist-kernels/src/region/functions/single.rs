//! Functions of f32.

use std::marker::PhantomData;

use super::instructions::Instructions;

/// Functions of f32, each under the name that mathematics gives it, and [how they round](Instructions).
pub(crate) struct Single<I>(PhantomData<I>);

/// Adding and subtracting it rounds to a whole number, which is then in the lowest bits.
const ROUND: f32 = 12_582_912.0;
/// The same for f64.
const ROUND_WIDE: f64 = 6_755_399_441_055_744.0;

/// Returns the value of a polynomial, its coefficients from the highest power down, each step rounded once.
macro_rules! fused_polynomial {
    ($x:expr, $first:expr $(, $next:expr)*) => {{
        let sum = $first;
        $(let sum = I::fused(sum, $x, $next);)*
        sum
    }};
}

/// Returns the value of a polynomial, its coefficients from the highest power down.
macro_rules! polynomial {
    ($x:expr, $first:expr $(, $next:expr)*) => {{
        let sum = $first;
        $(let sum = sum * $x + $next;)*
        sum
    }};
}

#[allow(
    clippy::excessive_precision,
    reason = "coefficients as they were published"
)]
impl<I: Instructions> Single<I> {
    /// Returns the whole number that is nearest to a number over ln 2, in the lowest bits and with what rounding adds,
    /// and the exponential of what remains.
    #[inline(always)]
    fn exp_of_rest(bounded: f32, round: f32) -> (u32, f32) {
        // ln 2 in two parts.
        const LN_2: [f32; 2] = [0.693_359_375, -2.121_944_4e-4];
        let shifted = I::fused(bounded, std::f32::consts::LOG2_E, round);
        let n = shifted - round;
        let r = I::fused(n, -LN_2[0], bounded);
        let r = I::fused(n, -LN_2[1], r);
        let power = fused_polynomial!(
            r,
            1.381_446_5e-3,
            8.368_781e-3,
            4.166_839_3e-2,
            1.666_652e-1,
            4.999_999_4e-1,
            1.0,
            1.0
        );
        (shifted.to_bits(), power)
    }

    #[inline(always)]
    pub(crate) fn exp(x: f32) -> f32 {
        // Below, the result is zero; above, infinite. NaN stays.
        let bounded = if x < -104.0 { -104.0 } else { x };
        let bounded = if bounded > 89.0 { 89.0 } else { bounded };
        // 254 more: twice the bias of exponents.
        let (both, power) = Self::exp_of_rest(bounded, ROUND + 254.0);
        // 2^n in two factors: the whole of it may be below the least normal number, or above the largest. Shifts drop
        // the bits above those of n.
        let first = both >> 1;
        let second = both.wrapping_sub(first);
        power * f32::from_bits(first << 23) * f32::from_bits(second << 23)
    }

    /// The exponential of a number from -104 to 70, or of NaN, with the bits of [`Self::exp`].
    #[inline(always)]
    pub(super) fn exp_of_small(x: f32) -> f32 {
        // 25 more than the bias of exponents: 2^25 times as much is a normal number, so that the result is rounded
        // once, where it is none.
        const LESS: f32 = 1.0 / (1 << 25) as f32;
        let (n, power) = Self::exp_of_rest(x, ROUND + (127.0 + 25.0));
        power * f32::from_bits(n << 23) * LESS
    }

    /// The exponential of a number that is not above zero, or of NaN, with the bits of [`Self::exp`].
    #[inline(always)]
    pub(crate) fn exp_of_negative(x: f32) -> f32 {
        Self::exp_of_small(if x < -104.0 { -104.0 } else { x })
    }

    #[inline(always)]
    pub(crate) fn sigmoid(x: f32) -> f32 {
        let e = Self::exp_of_negative(-x.abs());
        // Chosen by bits: of a choice between floats the compiler makes two quotients.
        let below = (x.to_bits() as i32 >> 31) as u32;
        let above = f32::from_bits(e.to_bits() & below | 1f32.to_bits() & !below);
        let sum = 1.0 + e;
        let quotient = above / sum;
        // What the sum has lost.
        let lost = e - (sum - 1.0);
        let inverse = if below == 0 { quotient } else { 1.0 - quotient };
        I::fused(-quotient, lost * inverse, quotient)
    }

    #[inline(always)]
    pub(crate) fn tanh(x: f32) -> f32 {
        let magnitude = x.abs();
        let z = x * x;
        let small = fused_polynomial!(
            z,
            -5.704_988_727_45e-3,
            2.063_908_879_54e-2,
            -5.373_971_555_31e-2,
            1.333_144_220_36e-1,
            -3.333_328_194_22e-1
        );
        let small = I::fused(small * z, magnitude, magnitude);
        // From 10 on it is 1.
        let bounded = if magnitude > 20.0 { 20.0 } else { magnitude };
        let large = 1.0 - 2.0 / (Self::exp_of_small(2.0 * bounded) + 1.0);
        (if magnitude > 0.625 { large } else { small }).copysign(x)
    }

    /// For magnitudes up to 1 a fit of `erf(x) / x` in x^2, to 1e-9; above, of `-ln(1 - erf(x))`, to 2e-8 (on 1 to 4,
    /// where erf is 1 to the last bit).
    #[inline(always)]
    pub(crate) fn erf(x: f32) -> f32 {
        let magnitude = x.abs();
        let z = x * x;
        let rest = fused_polynomial!(
            z,
            7.875_875_062_69e-5,
            -8.016_864_287_17e-4,
            5.189_087_423_43e-3,
            -2.685_421_201_06e-2,
            1.128_359_471_52e-1,
            -3.761_262_665_71e-1,
            // 1 less: x itself is added, exactly.
            1.283_791_658_5e-1
        );
        let small = I::fused(magnitude, rest, magnitude);
        let bounded = if magnitude > 4.0 { 4.0 } else { magnitude };
        let minus_log = fused_polynomial!(
            bounded,
            -1.637_151_414_59e-6,
            4.605_804_268_92e-5,
            -5.968_056_256_61e-4,
            4.759_596_293_27e-3,
            -2.642_113_600_57e-2,
            1.100_800_829_49e-1,
            6.318_260_515_59e-1,
            1.130_233_434_84,
            -3.201_380_496_78e-4
        );
        let large = 1.0 - Self::exp_of_small(-minus_log);
        (if magnitude > 1.0 { large } else { small }).copysign(x)
    }

    /// The logarithm of a positive number that is not infinite.
    #[inline(always)]
    fn log_wide(x: f64) -> f64 {
        // x = m 2^e with m between the root of 1/2 and that of 2. The exponent is kept positive: 1024 more.
        const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
        let bits = x.to_bits();
        let exponent = bits.wrapping_sub(ROOT_OF_HALF).wrapping_add(1024 << 52) >> 52;
        let m = f64::from_bits(bits.wrapping_sub(exponent.wrapping_sub(1024) << 52));
        // The bits of 2^52 + n.
        let e =
            f64::from_bits(0x4330_0000_0000_0000 | exponent) - (4_503_599_627_370_496.0 + 1024.0);
        // ln m = 2 artanh s.
        let s = (m - 1.0) / (m + 1.0);
        let z = s * s;
        let series = polynomial!(
            z,
            1.0 / 15.0,
            1.0 / 13.0,
            1.0 / 11.0,
            1.0 / 9.0,
            1.0 / 7.0,
            1.0 / 5.0,
            1.0 / 3.0
        );
        e * std::f64::consts::LN_2 + 2.0 * (s + s * (z * series))
    }

    #[inline(always)]
    pub(crate) fn log(x: f32) -> f32 {
        let made = Self::log_wide(f64::from(x)) as f32;
        let made = if x == 0.0 { f32::NEG_INFINITY } else { made };
        let made = if x < 0.0 { f32::NAN } else { made };
        // Infinity and NaN.
        if x < f32::INFINITY { made } else { x }
    }

    #[inline(always)]
    pub(crate) fn log1p(x: f32) -> f32 {
        let wide = f64::from(x);
        let sum = 1.0 + wide;
        // What the sum has lost.
        let lost = wide - (sum - 1.0);
        let made = (Self::log_wide(sum) + lost / sum) as f32;
        let made = if x == -1.0 { f32::NEG_INFINITY } else { made };
        let made = if x < -1.0 { f32::NAN } else { made };
        let made = if x == 0.0 { x } else { made };
        if x < f32::INFINITY { made } else { x }
    }

    /// e to the power of a number, which is bounded to 700 of both signs.
    #[inline(always)]
    fn exp_wide(x: f64) -> f64 {
        const LN_2: [f64; 2] = [6.931_471_803_691_238_16e-1, 1.908_214_929_270_587_7e-10];
        let bounded = if x < -700.0 { -700.0 } else { x };
        let bounded = if bounded > 700.0 { 700.0 } else { bounded };
        let shifted = bounded * std::f64::consts::LOG2_E + ROUND_WIDE;
        let n = shifted - ROUND_WIDE;
        let r = (bounded - n * LN_2[0]) - n * LN_2[1];
        let power = polynomial!(
            r,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0
        );
        power * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
    }

    /// Special cases are as IEEE 754 and C have them.
    #[inline(always)]
    pub(crate) fn pow(x: f32, y: f32) -> f32 {
        let magnitude = x.abs();
        let log = Self::log_wide(f64::from(magnitude));
        let log = if magnitude == 0.0 {
            f64::NEG_INFINITY
        } else {
            log
        };
        let log = if magnitude < f32::INFINITY {
            log
        } else {
            f64::from(magnitude)
        };
        let made = Self::exp_wide(log * f64::from(y)) as f32;
        let half = y * 0.5;
        let is_whole = y.trunc() == y;
        let is_odd = is_whole && half.trunc() != half;
        let negative = x.is_sign_negative();
        let is_real = is_whole || x == 0.0 || magnitude == f32::INFINITY;
        let made = if negative && is_odd { -made } else { made };
        let made = if negative && !is_real && !x.is_nan() {
            f32::NAN
        } else {
            made
        };
        let is_one = y == 0.0 || x == 1.0 || (magnitude == 1.0 && y.abs() == f32::INFINITY);
        if is_one { 1.0 } else { made }
    }

    /// The number of quarter turns of an angle below [`Self::TURNS_MAX`], in its lowest bits, and what remains.
    #[inline(always)]
    fn turned(x: f32) -> (u64, f64) {
        // The first 25 bits of pi / 2, and the rest.
        const QUARTER: [f64; 2] = [1.570_796_310_901_641_845_7, 1.589_325_477_352_819_669_16e-8];
        let wide = f64::from(x);
        let shifted = wide * std::f64::consts::FRAC_2_PI + ROUND_WIDE;
        let n = shifted - ROUND_WIDE;
        (shifted.to_bits(), (wide - n * QUARTER[0]) - n * QUARTER[1])
    }

    #[inline(always)]
    fn sin_of_rest(r: f64) -> f64 {
        let z = r * r;
        let series = polynomial!(
            z,
            0.000_002_718_311_493_989_821_906_4,
            -0.000_198_393_348_360_966_317_347,
            0.008_333_329_385_889_463_175_6,
            -0.166_666_666_416_265_235_595
        );
        r + r * (z * series)
    }

    #[inline(always)]
    fn cos_of_rest(r: f64) -> f64 {
        let z = r * r;
        polynomial!(
            z,
            0.000_024_390_448_796_277_409_065_4,
            -0.001_388_676_377_460_992_946_92,
            0.041_666_623_323_739_063_189_4,
            -0.499_999_997_251_031_003_120,
            1.0
        )
    }

    /// Angles of this magnitude and more are [`Double`](super::Double)'s.
    pub(crate) const ANGLE_MAX: f32 = 1e8;

    /// The angle is below [`Self::ANGLE_MAX`].
    #[inline(always)]
    pub(crate) fn sin(x: f32) -> f32 {
        let (turns, r) = Self::turned(x);
        let (sin, cos) = (Self::sin_of_rest(r), Self::cos_of_rest(r));
        let made = if turns & 1 == 0 { sin } else { cos };
        let made = (if turns & 2 == 0 { made } else { -made }) as f32;
        if x == 0.0 { x } else { made }
    }

    /// The angle is below [`Self::ANGLE_MAX`].
    #[inline(always)]
    pub(crate) fn cos(x: f32) -> f32 {
        let (turns, r) = Self::turned(x);
        let (sin, cos) = (Self::sin_of_rest(r), Self::cos_of_rest(r));
        let made = if turns & 1 == 0 { cos } else { sin };
        (if turns.wrapping_add(1) & 2 == 0 {
            made
        } else {
            -made
        }) as f32
    }

    /// The angle is below [`Self::ANGLE_MAX`].
    #[inline(always)]
    pub(crate) fn tan(x: f32) -> f32 {
        let (turns, r) = Self::turned(x);
        let (sin, cos) = (Self::sin_of_rest(r), Self::cos_of_rest(r));
        let (above, below) = if turns & 1 == 0 {
            (sin, cos)
        } else {
            (-cos, sin)
        };
        let made = (above / below) as f32;
        if x == 0.0 { x } else { made }
    }
}
