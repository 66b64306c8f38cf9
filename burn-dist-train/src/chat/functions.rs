//! Functions and filters of templates that Jinja does not have, or has otherwise.

use chrono::{DateTime, Utc};
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
pub struct Day(DateTime<Utc>);

impl Default for Day {
    /// The 26th of July 2024, which templates of Llama 3 take where they have no clock: rows of data do not depend
    /// on when they are made.
    fn default() -> Self {
        Self::at(1_721_952_000)
    }
}

/// The last second of the year 9999.
const LAST: u64 = 253_402_300_799;

/// The directives of a date that a template may ask for. Python and `chrono` write others differently, or one of them
/// has none.
const DIRECTIVES: &str = "YymBbhdejAaHIpMSFTZ%";

impl Day {
    /// So many seconds since the beginning of 1970.
    pub fn at(seconds: u64) -> Self {
        let day = DateTime::from_timestamp(seconds.min(LAST) as i64, 0);
        Self(day.expect("it goes beyond the year 9999"))
    }

    /// Returns it as `strftime` writes it.
    fn written(self, format: &str) -> Result<String, Error> {
        let mut rest = format.chars();
        while rest.any(|it| it == '%') {
            let directive = rest.next();
            if !directive.is_some_and(|it| DIRECTIVES.contains(it)) {
                let what: String = ['%'].into_iter().chain(directive).collect();
                let message = format!("strftime_now has no {what}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(self.0.format(format).to_string())
    }
}
