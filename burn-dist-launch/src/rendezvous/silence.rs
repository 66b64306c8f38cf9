//! How long this process may be silent, as its environment says.

use super::RendezvousError;
use super::limits::{SILENCE_MIN, SILENCE_SECONDS};
use crate::seconds::seconds;
use std::time::Duration;

/// Returns what [`SILENCE_SECONDS`] says, if it is set.
///
/// # Errors
/// [`RendezvousError::Silence`] if it is no number of seconds, or too few.
pub fn silence() -> Result<Option<Duration>, RendezvousError> {
    let text = std::env::var_os(SILENCE_SECONDS);
    text.map_or(Ok(None), |text| parse(&text.to_string_lossy()))
}

fn parse(text: &str) -> Result<Option<Duration>, RendezvousError> {
    match seconds(text) {
        _ if text.trim().is_empty() => Ok(None),
        Some(silence) if silence >= SILENCE_MIN => Ok(Some(silence)),
        _ => Err(RendezvousError::Silence(text.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_a_number_of_seconds_within_bounds() {
        let day = Duration::from_secs(86_400);
        for (text, expected) in [
            ("", None),
            ("3", Some(SILENCE_MIN)),
            ("600.5", Some(Duration::from_millis(600_500))),
            ("1e19", Some(day)),
        ] {
            assert_eq!(parse(text).expect(text), expected);
        }
        for text in ["2.9", "0", "-1", "long", "NaN"] {
            let error = parse(text).expect_err(text).to_string();
            let expected =
                format!("BURN_DIST_SILENCE_SECONDS={text} is not a number of seconds from 3 on");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
