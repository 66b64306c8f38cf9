//! Numbers of seconds in the environment.

use std::time::Duration;

/// The longest that anyone waits.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns so many seconds, at most a [`DAY`]; `None` for what is no number of seconds.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(DAY.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_numbers_and_at_most_a_day() {
        for (text, expected) in [
            ("0.5", Some(Duration::from_millis(500))),
            (" 60 ", Some(Duration::from_secs(60))),
            ("0", Some(Duration::ZERO)),
            ("86401", Some(DAY)),
            ("1e19", Some(DAY)),
            ("1e300", Some(DAY)),
            ("inf", Some(DAY)),
            ("-1", None),
            ("NaN", None),
            ("1 s", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
