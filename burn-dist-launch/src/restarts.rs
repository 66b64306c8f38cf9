//! How often a program was started anew.

use super::ClusterEnvError;

/// The variable in which `burn-dist run --max-restarts` counts its restarts.
pub const RESTART: &str = "BURN_DIST_RESTART";

/// Returns how often `burn-dist run --max-restarts` has started this program anew, after a failure: 0 for the first
/// time, and under other launchers.
///
/// A program that saves its state uses it so:
///
/// ```
/// let resume = burn_dist_launch::restarts()? > 0;
/// assert!(!resume, "nothing has failed yet");
/// # Ok::<(), burn_dist_launch::ClusterEnvError>(())
/// ```
///
/// # Errors
/// [`ClusterEnvError::NotANumber`] if [`RESTART`] says something else: a program that began anew then would lose what
/// it has saved.
pub fn restarts() -> Result<u32, ClusterEnvError> {
    let counted = std::env::var_os(RESTART);
    counted.map_or(Ok(0), |counted| {
        number_of_restarts(&counted.to_string_lossy())
    })
}

fn number_of_restarts(counted: &str) -> Result<u32, ClusterEnvError> {
    match counted.trim() {
        "" => Ok(0),
        counted => counted.parse().map_err(|_| ClusterEnvError::NotANumber {
            variable: RESTART,
            value: counted.to_string(),
            what: "a number of restarts",
            way_out: "`burn-dist run --max-restarts` sets it; unset it under another launcher",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_a_number() {
        for (counted, expected) in [("", 0), (" 3 ", 3), ("0", 0)] {
            assert_eq!(number_of_restarts(counted), Ok(expected), "{counted}");
        }
        for counted in ["one", "-1", "4294967296", "1.0"] {
            let error = number_of_restarts(counted).expect_err(counted).to_string();
            let expected = format!("BURN_DIST_RESTART={counted} is not a number of restarts");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
