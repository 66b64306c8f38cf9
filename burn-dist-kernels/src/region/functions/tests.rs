//! Against f64: a dense sample of all f32, or all of them where `REGION_ALL_NUMBERS` is set.

mod double;

use super::{Double, Single};

/// The largest error of a function in units in the last place of the nearest f32, and where.
fn worst(function: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
    let step = match std::env::var_os("REGION_ALL_NUMBERS") {
        Some(_) => 1,
        // A prime, so that all patterns of low bits come up.
        None => 397,
    };
    let mut worst = (0.0, 0.0);
    let mut bits = 0u32;
    loop {
        let x = f32::from_bits(bits);
        let (found, expected) = (function(x), exact(f64::from(x)));
        let error = error(found, expected);
        if error > worst.0 {
            worst = (error, x);
        }
        match bits.checked_add(step) {
            Some(next) => bits = next,
            None => return worst,
        }
    }
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

macro_rules! close {
    ($($name:ident: $ulp:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            let (worst, at) = worst(Single::$name, Double::$name);
            println!("{}: {worst:.3} ulp at {at:e}", stringify!($name));
            assert!(worst <= $ulp, "{worst} ulp at {at:e}");
        })*
    };
}
close! { exp: 2.0, sigmoid: 2.0, tanh: 2.0, erf: 2.0, log: 1.0, log1p: 1.0 }

macro_rules! close_angles {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            let function = |x: f32| match x.abs() < Single::ANGLE_MAX {
                true => Single::$name(x),
                false => Double::$name(f64::from(x)) as f32,
            };
            let (worst, at) = worst(function, Double::$name);
            println!("{}: {worst:.3} ulp at {at:e}", stringify!($name));
            assert!(worst <= 1.0, "{worst} ulp at {at:e}");
        })*
    };
}
close_angles!(sin, cos, tan);

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
