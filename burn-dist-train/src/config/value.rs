//! Values: in TOML, and as an option's text.

use std::any::TypeId;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command, Id};
use toml::de::DeValue;
use toml_writer::{ToTomlValue, TomlStringBuilder};

/// The kind of values that an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    scalar: Scalar,
    /// True if it takes several.
    pub(super) is_list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scalar {
    /// It is there or not.
    Switch,
    Integer,
    Number,
    /// Text that nothing else is read from.
    Text,
    /// Text with a meaning, which may also be a number: `4` and `4+2`.
    Other,
}

impl Kind {
    /// Returns the kind of values that an option takes, if that has a form in a file.
    pub(super) fn of(arg: &Arg) -> Option<Self> {
        let is_list = match arg.get_action() {
            ArgAction::SetTrue => {
                return Some(Self {
                    scalar: Scalar::Switch,
                    is_list: false,
                });
            }
            ArgAction::Set => arg.get_num_args().is_some_and(|num| num.max_values() > 1),
            ArgAction::Append => true,
            _ => return None,
        };
        let parsed = arg.get_value_parser().type_id();
        let is = |types: &[TypeId]| types.iter().any(|found| parsed == *found);
        let integers = [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
            TypeId::of::<i8>(),
            TypeId::of::<i16>(),
            TypeId::of::<i32>(),
            TypeId::of::<i64>(),
            TypeId::of::<isize>(),
        ];
        let texts = [
            TypeId::of::<String>(),
            TypeId::of::<OsString>(),
            TypeId::of::<PathBuf>(),
        ];
        let scalar = match () {
            () if is(&integers) => Scalar::Integer,
            () if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) => Scalar::Number,
            () if is(&texts) => Scalar::Text,
            () => Scalar::Other,
        };
        Some(Self { scalar, is_list })
    }

    /// Returns whether it is a switch.
    pub(super) fn is_switch(self) -> bool {
        self.scalar == Scalar::Switch
    }

    /// Returns the values that it takes, in words.
    pub(super) fn takes(self) -> &'static str {
        match (self.is_list, self.scalar) {
            (_, Scalar::Switch) => "true or false",
            (false, Scalar::Integer) => "a whole number",
            (false, Scalar::Number) => "a number",
            (false, Scalar::Text) => "a string",
            (false, Scalar::Other) => "a string or a number",
            (true, Scalar::Integer) => "an array of whole numbers",
            (true, Scalar::Number) => "an array of numbers",
            (true, Scalar::Text) => "an array of strings",
            (true, Scalar::Other) => "an array of strings or numbers",
        }
    }

    /// The text of one value, as it stands on a command line; nothing of a switch that is off. `None` if it is of
    /// another type.
    pub(super) fn text(self, value: &DeValue<'_>) -> Option<Option<String>> {
        let text = match (self.scalar, value) {
            (Scalar::Switch, DeValue::Boolean(on)) => return Some(on.then(String::new)),
            (Scalar::Text | Scalar::Other, DeValue::String(text)) => text.to_string(),
            (Scalar::Integer | Scalar::Number | Scalar::Other, DeValue::Integer(number)) => {
                match number.radix() {
                    10 => number.as_str().to_string(),
                    radix => i128::from_str_radix(number.as_str(), radix)
                        .ok()?
                        .to_string(),
                }
            }
            (Scalar::Number | Scalar::Other, DeValue::Float(number)) => number.as_str().to_string(),
            _ => return None,
        };
        Some(Some(text))
    }

    /// A value in TOML, from its text on a command line.
    pub(super) fn toml(self, text: &str) -> String {
        let number = match self.scalar {
            Scalar::Switch => return text.to_string(),
            // TOML has no leading zeros, and no `1.`.
            Scalar::Integer => text.parse::<i128>().ok().map(|number| number.to_string()),
            Scalar::Number => match DeValue::parse(text) {
                Ok(value) if value.get_ref().is_float() || value.get_ref().is_integer() => {
                    Some(text.to_string())
                }
                _ => text
                    .parse::<f64>()
                    .ok()
                    .map(|number| format!("{number:?}").to_lowercase()),
            },
            Scalar::Text | Scalar::Other => None,
        };
        // On one line, so that it can be a comment too.
        number.unwrap_or_else(|| TomlStringBuilder::new(text).as_basic().to_toml_value())
    }
}

/// Returns a value of a file in words.
pub(super) fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(_) => "a string".to_string(),
        DeValue::Integer(_) => "a whole number".to_string(),
        DeValue::Float(_) => "a number with a fraction".to_string(),
        DeValue::Boolean(on) => on.to_string(),
        DeValue::Datetime(_) => "a date or time".to_string(),
        DeValue::Array(_) => "an array".to_string(),
        DeValue::Table(_) => "a table".to_string(),
    }
}

/// An option with a value, as an argument; a switch has none.
pub(super) fn argument(arg: &Arg, text: &std::ffi::OsStr) -> OsString {
    let mut argument = OsString::from("--");
    argument.push(arg.get_long().unwrap_or_default());
    if arg.get_action().takes_values() {
        argument.push("=");
        argument.push(text);
    }
    argument
}

/// Checks a value by the option's own parser; the error is in the parser's words.
pub(super) fn check(arg: &Arg, text: &str) -> Result<(), String> {
    let alone = arg.clone().required(false);
    let alone = alone
        .requires(Resettable::<Id>::Reset)
        .conflicts_with(Resettable::<Id>::Reset);
    let command = Command::new("value").no_binary_name(true).arg(alone);
    let argument = argument(arg, text.as_ref());
    let Err(error) = command.try_get_matches_from([argument]) else {
        return Ok(());
    };
    if let Some(source) = error.source() {
        return Err(source.to_string());
    }
    let strings = |kind| match error.get(kind) {
        Some(ContextValue::Strings(strings)) => strings.join(", "),
        Some(ContextValue::String(string)) => string.clone(),
        _ => String::new(),
    };
    let valid = strings(ContextKind::ValidValue);
    let nearest = strings(ContextKind::SuggestedValue);
    Err(match (valid.is_empty(), nearest.is_empty()) {
        (true, _) => error.kind().to_string(),
        (false, true) => format!("it is one of {valid}"),
        (false, false) => format!("it is one of {valid}; did you mean {nearest}?"),
    })
}
