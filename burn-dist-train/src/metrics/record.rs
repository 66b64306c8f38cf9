//! Records: the figures of a step, and events.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// Something to write, with the time at which it was made.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Figures of a step.
    Figures(Figures),
    /// An event.
    Event(Event),
    /// A text.
    Text(Text),
}

/// A text of a run, such as its configuration, which programs that draw figures show beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub(super) name: Cow<'static, str>,
    pub(super) step: u64,
    pub(super) time_unix_ms: u64,
    pub(super) text: String,
}

impl Text {
    /// A text of a run that has done `step` steps. It is shown as it is, line by line.
    pub fn new(name: impl Into<Cow<'static, str>>, step: u64, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            step,
            time_unix_ms: now_unix_ms(),
            text: text.into(),
        }
    }
}

/// Figures of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    pub(super) step: u64,
    pub(super) time_unix_ms: u64,
    pub(super) values: Vec<(Cow<'static, str>, f64)>,
}

impl Figures {
    /// Begins those of a step: the number of steps done, this one included.
    pub fn at(step: u64) -> Self {
        Self {
            step,
            time_unix_ms: now_unix_ms(),
            values: Vec::new(),
        }
    }

    /// Adds a figure.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: f64) -> Self {
        self.push(name, value);
        self
    }

    /// Adds a figure.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: f64) {
        self.values.push((name.into(), value));
    }

    /// Returns the step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the figure of a name.
    pub fn get(&self, name: &str) -> Option<f64> {
        let mut values = self.values.iter();
        values
            .find(|(found, _)| found == name)
            .map(|(_, value)| *value)
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub(super) kind: Cow<'static, str>,
    pub(super) time_unix_ms: u64,
    pub(super) fields: Map<String, Value>,
}

impl Event {
    /// Begins an event of a kind, in one word: `begin`, `checkpoint`.
    pub fn new(kind: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: kind.into(),
            time_unix_ms: now_unix_ms(),
            fields: Map::new(),
        }
    }

    /// Adds a field. The names `event` and `time_unix_ms` are taken.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }
}

/// The time of the system's clock.
pub(super) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 is none.
    since.map_or(0, |since| since.as_millis() as u64)
}
