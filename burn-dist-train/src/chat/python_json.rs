//! JSON as Python's `json.dumps` writes it.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The options of `json.dumps`.
pub(super) struct Style {
    /// Writes other characters than those of ASCII as `\u....`.
    pub(super) ascii: bool,
    /// Writes each item on a line of its own, so much further in.
    pub(super) indent: Option<usize>,
    /// The texts between items, and between a key and its value.
    pub(super) separators: Option<Vec<String>>,
    /// Sorts the keys of objects.
    pub(super) sort: bool,
}

/// Values are no deeper.
const DEPTH_MAX: usize = 128;

/// Returns the JSON of a value.
pub(super) fn written(value: &Value, style: &Style) -> Result<String, Error> {
    let (item, key) = match style.separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => return Err(wrong("separators of tojson are two")),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = Writer {
        text: String::new(),
        style,
        item,
        key,
    };
    writer.value(value, 0)?;
    Ok(writer.text)
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

struct Writer<'a> {
    text: String,
    style: &'a Style,
    item: &'a str,
    key: &'a str,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(wrong("tojson of a value that is nested too deep"));
        }
        match value.kind() {
            ValueKind::None => self.text += "null",
            ValueKind::Bool => self.text += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let mut any = false;
                for it in value.try_iter()? {
                    self.next(any, depth + 1);
                    self.value(&it, depth + 1)?;
                    any = true;
                }
                self.close(any, depth, ']');
            }
            ValueKind::Map => {
                let mut names: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort {
                    names.sort();
                }
                self.text.push('{');
                let mut any = false;
                for name in names {
                    self.next(any, depth + 1);
                    self.string(&name.to_string());
                    self.text += self.key;
                    self.value(&value.get_item(&name)?, depth + 1)?;
                    any = true;
                }
                self.close(any, depth, '}');
            }
            _ => return Err(wrong("tojson of what is no JSON")),
        }
        Ok(())
    }

    fn next(&mut self, any: bool, depth: usize) {
        if any {
            self.text += self.item;
        }
        self.line(depth);
    }

    fn close(&mut self, any: bool, depth: usize, end: char) {
        if any {
            self.line(depth);
        }
        self.text.push(end);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    /// Whole numbers as they are, others as Python's `repr`: the fewest digits that are read as the same number.
    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.text += &value.to_string();
            return;
        }
        let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        self.text += &match number {
            it if it.is_nan() => "NaN".to_string(),
            it if it.is_infinite() && it > 0.0 => "Infinity".to_string(),
            it if it.is_infinite() => "-Infinity".to_string(),
            it if it == 0.0 || (1e-4..1e16).contains(&it.abs()) => format!("{it:?}"),
            it => {
                let text = format!("{it:e}");
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or_default();
                let sign = if exponent < 0 { '-' } else { '+' };
                format!("{digits}e{sign}{:02}", exponent.abs())
            }
        };
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for it in text.chars() {
            match it {
                '"' => self.text += "\\\"",
                '\\' => self.text += "\\\\",
                '\n' => self.text += "\\n",
                '\r' => self.text += "\\r",
                '\t' => self.text += "\\t",
                '\u{8}' => self.text += "\\b",
                '\u{c}' => self.text += "\\f",
                it if it < ' ' => self.escaped(u32::from(it) as u16),
                it if self.style.ascii && !(' '..='~').contains(&it) => {
                    for unit in it.encode_utf16(&mut [0; 2]) {
                        self.escaped(*unit);
                    }
                }
                it => self.text.push(it),
            }
        }
        self.text.push('"');
    }

    fn escaped(&mut self, unit: u16) {
        self.text += &format!("\\u{unit:04x}");
    }
}
