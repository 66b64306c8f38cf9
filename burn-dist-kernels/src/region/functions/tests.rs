//! Against f64: a dense sample of all f32, or all of them where `REGION_ALL_NUMBERS` is set; and f64 against another
//! library.

mod double;

use burn_dist_plan::region::Unary;
use rayon::prelude::*;

use super::{Double, Own, Single as Functions};
use crate::region::level::Level;
use crate::region::loops::Numbers;
use crate::region::memory::places;

/// Functions with the instruction of the processor that runs the test.
type Single = Functions<Own>;

/// The largest error of a function in units in the last place of the nearest f32, and where: of the loop that regions
/// run.
fn worst(op: Unary, exact: fn(f64) -> f64) -> (f64, f32) {
    let step = match std::env::var_os("REGION_ALL_NUMBERS") {
        Some(_) => 1,
        // A prime, so that all patterns of low bits come up.
        None => 397,
    };
    const PARTS: u64 = 4096;
    let part = |part: u64| {
        let first = (part << 32) / PARTS;
        let end = first + (1 << 32) / PARTS;
        // From the first multiple of the step on.
        let mut bits = (first.next_multiple_of(step)..end).step_by(step as usize);
        let mut worst = (0.0, 0.0);
        loop {
            let of: Vec<f32> = bits
                .by_ref()
                .take(4096)
                .map(|bits| f32::from_bits(bits as u32))
                .collect();
            if of.is_empty() {
                return worst;
            }
            let mut made = vec![0.0; of.len()];
            f32::unary(Level::best(), op, places(&mut made), &of);
            for (x, made) in of.into_iter().zip(made) {
                let error = error(made, exact(f64::from(x)));
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
    };
    let larger = |one: (f64, f32), other: (f64, f32)| if other.0 > one.0 { other } else { one };
    (0..PARTS)
        .into_par_iter()
        .map(part)
        .reduce(|| (0.0, 0.0), larger)
}

/// How far a number is from an exact one, in units in the last place; infinite if it is another special one.
fn error(found: f32, expected: f64) -> f64 {
    let nearest = expected as f32;
    if nearest.is_nan() || found.is_nan() {
        return if nearest.is_nan() && found.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if nearest == found {
        let same_sign = nearest.is_sign_negative() == found.is_sign_negative();
        return match same_sign {
            true if nearest.is_infinite() => 0.0,
            true => (f64::from(found) - expected).abs() / ulp(nearest),
            false => f64::INFINITY,
        };
    }
    if nearest.is_infinite() || found.is_infinite() {
        // Next to the largest number.
        let finite = if nearest.is_infinite() {
            found
        } else {
            nearest
        };
        return if finite.abs() == f32::MAX {
            1.0
        } else {
            f64::INFINITY
        };
    }
    (f64::from(found) - expected).abs() / ulp(nearest)
}

fn ulp(x: f32) -> f64 {
    let magnitude = x.abs().max(f32::MIN_POSITIVE);
    f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude)
}

/// The standard library's functions of f64 are those of the system, good to an ulp of f64 or so, and fast.
fn plain_sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

macro_rules! close {
    ($($name:ident, $op:ident: $ulp:literal, $exact:expr;)*) => {
        $(#[test]
        fn $name() {
            let (worst, at) = worst(Unary::$op, $exact);
            println!("{}: {worst:.3} ulp at {at:e}", stringify!($name));
            assert!(worst <= $ulp, "{worst} ulp at {at:e}");
        })*
    };
}
close! {
    exp, Exp: 2.0, f64::exp;
    sigmoid, Sigmoid: 2.0, plain_sigmoid;
    tanh, Tanh: 2.0, f64::tanh;
    erf, Erf: 2.0, Double::erf;
    log, Log: 1.0, f64::ln;
    log1p, Log1p: 1.0, f64::ln_1p;
    sin, Sin: 1.0, f64::sin;
    cos, Cos: 1.0, f64::cos;
    tan, Tan: 1.0, f64::tan;
}

#[test]
fn exponentials_of_small_numbers_are_those_of_all() {
    let [least, most] = [-104f32, 70.0];
    for bits in (0..=most.to_bits())
        .chain((-0f32).to_bits()..=least.to_bits())
        .step_by(97)
    {
        let x = f32::from_bits(bits);
        let (found, expected) = (Single::exp_of_small(x), Single::exp(x));
        assert_eq!(
            found.to_bits(),
            expected.to_bits(),
            "{x:e}: {found:e}, not {expected:e}"
        );
    }
    for x in [least, most] {
        assert_eq!(Single::exp_of_small(x), Single::exp(x));
    }
    assert!(Single::exp_of_small(f32::NAN).is_nan());
}

const SPECIAL: [f32; 20] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1.5,
    -2.5,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

#[test]
fn pow_of_special_numbers() {
    for x in SPECIAL {
        for y in SPECIAL {
            let (found, expected) = (Single::pow(x, y), x.powf(y));
            let same = found == expected && found.is_sign_negative() == expected.is_sign_negative();
            let close = error(found, f64::from(x).powf(f64::from(y))) <= 1.0;
            let both_nan = found.is_nan() && expected.is_nan();
            assert!(
                same || close || both_nan,
                "{x:e} to {y:e}: {found:e}, not {expected:e}"
            );
        }
    }
}

#[test]
fn pow_of_many() {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f32::from_bits((state >> 32) as u32)
    };
    let mut largest = 0f64;
    for _ in 0..3_000_000 {
        let (x, y) = (next(), next());
        // Most pairs of any numbers are out of range.
        let y = if y.abs() > 100.0 {
            (y.to_bits() % 2001) as f32 / 10.0 - 100.0
        } else {
            y
        };
        let found = error(Single::pow(x, y), Double::pow(f64::from(x), f64::from(y)));
        assert!(found <= 1.0, "{x:e} to {y:e}: {found} ulp");
        largest = largest.max(found);
    }
    println!("pow: {largest:.3} ulp");
}

/// A number of f64 by chance, of any size where there are no bounds.
fn numbers(from: f64, to: f64) -> impl Iterator<Item = f64> {
    const MANY: u32 = 400_000;
    let even = (0..=MANY).map(move |i| from + (to - from) * f64::from(i) / f64::from(MANY));
    // Each power of two, so that those near zero come up.
    let powers = (-1074..1024)
        .flat_map(|power| (0..8).map(move |part| (1.0 + f64::from(part) / 8.0) * 2f64.powi(power)));
    let powers = powers
        .flat_map(|x| [x, -x])
        .filter(move |x| (from..=to).contains(x));
    even.chain(powers)
}

/// The functions of f64 and the standard library's, which are another's, differ by no more than 3 ulp, the error of
/// both.
macro_rules! double_close {
    ($($name:ident, $from:expr, $to:expr, $other:expr;)*) => {
        #[test]
        fn functions_of_f64_are_close_to_another_library() {
            $({
                let mut worst = (0.0, 0.0);
                for x in numbers($from, $to) {
                    let (found, expected): (f64, f64) = (Double::$name(x), $other(x));
                    let magnitude = expected.abs().max(f64::MIN_POSITIVE);
                    let ulp = f64::from_bits(magnitude.to_bits() + 1) - magnitude;
                    let error = match found == expected || (found.is_nan() && expected.is_nan()) {
                        true => 0.0,
                        false => (found - expected).abs() / ulp,
                    };
                    if error.is_nan() || error > worst.0 {
                        worst = (error, x);
                    }
                }
                println!("f64 {}: {} ulp apart at {:e}", stringify!($name), worst.0, worst.1);
                assert!(worst.0 <= 3.0, "{}: {} ulp at {:e}", stringify!($name), worst.0, worst.1);
            })*
        }
    };
}
double_close! {
    exp, -745.0, 709.0, f64::exp;
    log, 0.0, f64::MAX, f64::ln;
    log1p, -1.0, f64::MAX, f64::ln_1p;
    sin, -1e6, 1e6, f64::sin;
    cos, -1e6, 1e6, f64::cos;
    tan, -1e6, 1e6, f64::tan;
    sinh, -700.0, 700.0, f64::sinh;
    cosh, -700.0, 700.0, f64::cosh;
    tanh, -30.0, 30.0, f64::tanh;
    asin, -1.0, 1.0, f64::asin;
    acos, -1.0, 1.0, f64::acos;
    atan, -1e6, 1e6, f64::atan;
    asinh, -1e6, 1e6, f64::asinh;
    acosh, 1.0, 1e6, f64::acosh;
    // Near -1 the standard library's loses bits.
    atanh, -1.0, 1.0, |x: f64| x.abs().atanh().copysign(x);
    sigmoid, -700.0, 700.0, plain_sigmoid;
}
