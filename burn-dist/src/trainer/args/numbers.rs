//! Numbers of the command line, each in its range.

use std::fmt::Display;
use std::str::FromStr;

/// Reads a number, and checks it; `range` says what it has to be.
fn number<T: FromStr<Err: Display>>(
    text: &str,
    range: &str,
    is_in: impl Fn(&T) -> bool,
) -> Result<T, String> {
    match text.parse() {
        Ok(number) if is_in(&number) => Ok(number),
        Ok(_) => Err(format!("must be {range}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that no size of a model is 0.
///
/// # Errors
/// With the size at fault.
pub fn check_sizes(sizes: &[(&str, usize)]) -> anyhow::Result<()> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((what, _)) => {
            anyhow::bail!("{what} is 0: every size of a model must be at least 1")
        }
        None => Ok(()),
    }
}

/// A whole number of at least 1.
///
/// # Errors
/// If the text is none.
pub fn positive(text: &str) -> Result<usize, String> {
    number(text, "at least 1", |number| *number > 0)
}

/// A number above 0.
///
/// # Errors
/// If the text is none.
pub fn above_0<T: FromStr<Err: Display> + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    number(text, "above 0", |number: &T| {
        is_finite_and(*number, |number| number > 0.0)
    })
}

/// A number of at least 0.
///
/// # Errors
/// If the text is none.
pub fn at_least_0<T: FromStr<Err: Display> + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    number(text, "at least 0", |number: &T| {
        is_finite_and(*number, |number| number >= 0.0)
    })
}

fn is_finite_and(number: impl Into<f64>, is_in: impl Fn(f64) -> bool) -> bool {
    let number = number.into();
    number.is_finite() && is_in(number)
}

/// A share of at least 0 and below 1.
///
/// # Errors
/// If the text is none.
pub fn below_1(text: &str) -> Result<f32, String> {
    number(text, "at least 0 and below 1", |share| {
        (0.0..1.0).contains(share)
    })
}

/// A share from 0 to 1.
///
/// # Errors
/// If the text is none.
pub fn share(text: &str) -> Result<f64, String> {
    number(text, "from 0 to 1", |share| (0.0..=1.0).contains(share))
}
