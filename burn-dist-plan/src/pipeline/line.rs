//! Lines of text forms: items with spaces between them.

use std::fmt;
use std::str::FromStr;

use burn_dist_mesh::TextError;

use super::ScheduleError;

/// Returns the line of a rank in the text form.
pub(super) fn line(rank: usize) -> usize {
    rank + 2
}

/// Writes items with spaces between them.
pub(super) fn write_line<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        let space = if index == 0 { "" } else { " " };
        write!(f, "{space}{item}")?;
    }
    writeln!(f)
}

/// Reads items with spaces between them.
pub(super) fn read_line<T: FromStr<Err = TextError>>(
    text: &str,
    line: usize,
) -> Result<Vec<T>, ScheduleError> {
    let item = |token: &str| {
        token
            .parse()
            .map_err(|error: TextError| ScheduleError::Text {
                line,
                token: error.text,
                problem: error.reason.to_owned(),
            })
    };
    text.split_whitespace().map(item).collect()
}
