//! Functions and filters of templates that Jinja does not have, or has otherwise.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::marks::marked;
use super::python_json::{Style, written};

/// The filter round answers.
pub(super) const GENERATION: &str = "burn_dist_generation";

/// Gives a template all that it has in Hugging Face's library.
pub(super) fn add(environment: &mut Environment<'static>, day: Day) {
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter(GENERATION, |part: String| marked(&part));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise);
    set_day(environment, day);
}

/// Sets the day of a template.
pub(super) fn set_day(environment: &mut Environment<'static>, day: Day) {
    environment.add_function("strftime_now", move |format: String| day.written(&format));
}

fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps` of Python, with its options.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let style = Style {
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        indent: options.get("indent")?,
        separators: options.get("separators")?,
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    written(value, &style).map(Value::from)
}

/// A day and the time of it, for templates that ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Day {
    /// Seconds since the beginning of 1970.
    seconds: u64,
}

impl Default for Day {
    /// The 26th of July 2024, which templates of Llama 3 take where they have no clock: rows of data do not depend
    /// on when they are made.
    fn default() -> Self {
        Self {
            seconds: 1_721_952_000,
        }
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

impl Day {
    /// So many seconds since the beginning of 1970.
    pub fn at(seconds: u64) -> Self {
        // The year 9999 is the last.
        Self {
            seconds: seconds.min(253_402_300_799),
        }
    }

    /// Returns it as `strftime` writes it.
    fn written(self, format: &str) -> Result<String, Error> {
        let (days, second) = (self.seconds / 86_400, self.seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let first = days - (0..month).map(|it| length(year, it)).sum::<u64>() - day;
        let (name, weekday) = (MONTHS[month], WEEKDAYS[((days + 3) % 7) as usize]);
        let twelve = (hour + 11) % 12 + 1;
        let half = if hour < 12 { "AM" } else { "PM" };
        let mut text = String::new();
        let mut rest = format.chars();
        while let Some(it) = rest.next() {
            if it != '%' {
                text.push(it);
                continue;
            }
            text += &match rest.next() {
                Some('Y') => year.to_string(),
                Some('y') => format!("{:02}", year % 100),
                Some('m') => format!("{:02}", month + 1),
                Some('B') => name.to_string(),
                Some('b' | 'h') => name[..3].to_string(),
                Some('d') => format!("{:02}", day + 1),
                Some('e') => format!("{:>2}", day + 1),
                Some('j') => format!("{:03}", days - first + 1),
                Some('A') => weekday.to_string(),
                Some('a') => weekday[..3].to_string(),
                Some('H') => format!("{hour:02}"),
                Some('I') => format!("{twelve:02}"),
                Some('p') => half.to_string(),
                Some('M') => format!("{minute:02}"),
                Some('S') => format!("{second:02}"),
                Some('F') => format!("{year}-{:02}-{:02}", month + 1, day + 1),
                Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
                Some('Z') => "UTC".to_string(),
                Some('%') => "%".to_string(),
                other => {
                    let what = other.map_or("%".to_string(), |it| format!("%{it}"));
                    let message = format!("strftime_now has no {what}");
                    return Err(Error::new(ErrorKind::InvalidOperation, message));
                }
            };
        }
        Ok(text)
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days of a month, counted from 0.
fn length(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Returns the year, and the month and the day, both counted from 0.
fn civil(days: u64) -> (u64, usize, u64) {
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 0;
    while left >= length(year, month) {
        left -= length(year, month);
        month += 1;
    }
    (year, month, left)
}
