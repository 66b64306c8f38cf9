//! Functions of f64, one number at a time.

/// Functions of f64, each under the name that mathematics gives it.
pub(crate) struct Double;

macro_rules! of_libm {
    ($($name:ident = $of:ident),* $(,)?) => {
        $(#[inline]
        pub(crate) fn $name(x: f64) -> f64 {
            libm::$of(x)
        })*
    };
}

impl Double {
    of_libm! {
        exp = exp, log = log, log1p = log1p, sin = sin, cos = cos, tan = tan, sinh = sinh, cosh = cosh, tanh = tanh,
        asin = asin, acos = acos, atan = atan, asinh = asinh, acosh = acosh, atanh = atanh, erf = erf,
    }

    #[inline]
    pub(crate) fn sigmoid(x: f64) -> f64 {
        let e = libm::exp(-x.abs());
        let above = if x >= 0.0 { 1.0 } else { e };
        above / (1.0 + e)
    }

    #[inline]
    pub(crate) fn pow(x: f64, y: f64) -> f64 {
        libm::pow(x, y)
    }

    #[inline]
    pub(crate) fn atan2(y: f64, x: f64) -> f64 {
        libm::atan2(y, x)
    }
}
