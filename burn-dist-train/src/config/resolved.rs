//! The options of a run, as a file that asks for them again.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::error::ConfigError;
use super::file::Entry;
use super::outline::{Key, Section, place_of};
use super::value::{Kind, argument};

/// How wide comments are.
const WIDTH: usize = 110;

/// Every option of a command with its value, whether it is from the command line, from a file or a default.
///
/// Law: as a file, it gives the arguments that it is made of.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    sections: &'static [Section],
    command: Command,
    line: Vec<OsString>,
    /// By option.
    values: Vec<Value>,
    /// Keys of the file that are options of other commands.
    others: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Value {
    arg: Arg,
    kind: Kind,
    section: &'static Section,
    key: &'static Key,
    texts: Vec<OsString>,
    /// True if someone asked for it; otherwise it is left out where another option excludes it.
    is_given: bool,
}

impl Resolved {
    pub(super) fn new(
        sections: &'static [Section],
        command: &Command,
        line: &[OsString],
        matches: &ArgMatches,
        others: Vec<Entry>,
    ) -> Self {
        let value = |arg: &Arg| {
            let (section, key) = place_of(sections, command.get_name(), arg.get_long()?)?;
            let (kind, id) = (Kind::of(arg)?, arg.get_id().as_str());
            let texts = match kind.is_switch() {
                true if matches.get_flag(id) => vec![OsString::new()],
                true => Vec::new(),
                false => {
                    let raw = matches.get_raw(id).into_iter().flatten();
                    raw.map(OsStr::to_os_string).collect()
                }
            };
            let source = matches.value_source(id);
            Some(Value {
                arg: arg.clone(),
                kind,
                section,
                key,
                texts,
                is_given: source.is_some_and(|source| source != ValueSource::DefaultValue),
            })
        };
        Self {
            sections,
            command: command.clone().no_binary_name(true),
            line: line.to_vec(),
            values: command.get_arguments().filter_map(value).collect(),
            others,
        }
    }

    /// Gives an option that has no value the one that the program chose for it.
    ///
    /// # Panics
    /// If the command has no such option in a section.
    pub fn choose(&mut self, option: &str, value: impl ToString) {
        let mut values = self.values.iter_mut();
        let of = values.find(|value| value.arg.get_long() == Some(option));
        let of = of.unwrap_or_else(|| panic!("the command has no option --{option} in a section"));
        if of.texts.is_empty() {
            of.texts.push(value.to_string().into());
        }
    }

    /// Returns every option that stands in a section: the section, the option, and its value as text, `None` without
    /// one. A switch has one if it is on; of several values all are in it.
    pub fn options(&self) -> Vec<(&'static str, &'static str, Option<String>)> {
        let text = |value: &Value| match value.kind.is_switch() {
            true => "true".to_string(),
            false => {
                let texts = value.texts.iter().map(|text| text.to_string_lossy());
                texts.collect::<Vec<_>>().join(" ")
            }
        };
        let of = |value: &Value| {
            let found = (!value.texts.is_empty()).then(|| text(value));
            (value.section.name, value.key.option, found)
        };
        self.values.iter().map(of).collect()
    }

    /// The file. `program` is named in its head, with the command line.
    ///
    /// An option without a value, and a default that another option excludes, are comments.
    ///
    /// # Errors
    /// [`ConfigError::NotUtf8`].
    pub fn to_toml(&self, program: &str) -> Result<String, ConfigError> {
        let mut text = format!(
            "# {program}, burn-dist {}: every option of a run, as its command line and its file had it.\n",
            env!("CARGO_PKG_VERSION")
        );
        let words: Vec<String> = self.line.iter().map(|word| shell_word(word)).collect();
        let _ = writeln!(text, "# {}", words.join(" "));
        let active = self.active();
        for (index, section) in self.sections.iter().enumerate() {
            // Two sections of a name are one in the file.
            if self.sections[..index]
                .iter()
                .any(|before| before.name == section.name)
            {
                continue;
            }
            let body = self.section(section.name, &active)?;
            if !body.is_empty() {
                let _ = write!(text, "\n[{}]\n{body}", section.name);
            }
        }
        Ok(text)
    }

    fn section(&self, name: &str, active: &[bool]) -> Result<String, ConfigError> {
        let mut body = String::new();
        for section in self.sections.iter().filter(|section| section.name == name) {
            for key in section.keys {
                let is_key = |found: &'static Section, of: &'static Key| {
                    found == section && std::ptr::eq(of, key)
                };
                let mut values = self.values.iter().zip(active);
                let mut others = self.others.iter();
                if let Some((value, active)) =
                    values.find(|(value, _)| is_key(value.section, value.key))
                {
                    comment(&mut body, &help(&value.arg));
                    let text = match value.texts.is_empty() && !value.kind.is_switch() {
                        true => format!("# {} =", key.name),
                        false => {
                            let text = toml(value.kind, &value.texts, key)?;
                            let mark = if *active { "" } else { "# " };
                            format!("{mark}{} = {text}", key.name)
                        }
                    };
                    let _ = writeln!(body, "{text}");
                } else if let Some(entry) = others.find(|entry| is_key(entry.section, entry.key)) {
                    let text = toml(entry.kind, &entry.values, key)?;
                    let _ = writeln!(body, "{} = {text}", key.name);
                }
            }
        }
        Ok(body)
    }

    /// Which values may stand in the file together: all that were passed, and each default that clap takes beside them.
    fn active(&self) -> Vec<bool> {
        let arguments = |value: &Value| -> Vec<OsString> {
            let texts = value.texts.iter();
            texts.map(|text| argument(&value.arg, text)).collect()
        };
        let given = self.values.iter().filter(|value| value.is_given);
        let mut so_far: Vec<OsString> = given.flat_map(arguments).collect();
        // What is required was given, or is still to be given: a program may be asked for its options alone.
        let required = |arg: Arg| arg.required(false);
        let command = self.command.clone().mut_args(required);
        let mut is_active = |value: &Value| {
            // Nothing that clap would object to.
            if value.is_given || value.texts.is_empty() {
                return true;
            }
            let mut with = so_far.clone();
            with.extend(arguments(value));
            let taken = command.clone().try_get_matches_from(&with).is_ok();
            if taken {
                so_far = with;
            }
            taken
        };
        self.values.iter().map(&mut is_active).collect()
    }
}

/// The texts of a key in TOML.
fn toml(kind: Kind, texts: &[OsString], key: &Key) -> Result<String, ConfigError> {
    if kind.is_switch() {
        return Ok((!texts.is_empty()).to_string());
    }
    let value = |text: &OsString| match text.to_str() {
        Some(text) => Ok(kind.toml(text)),
        None => Err(ConfigError::NotUtf8 {
            option: key.option.to_string(),
        }),
    };
    let values = texts.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    Ok(match kind.is_list {
        true => format!("[{}]", values.join(", ")),
        false => values.concat(),
    })
}

/// Returns the help of an option, and which values it takes where these are few.
fn help(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut help = help.map(ToString::to_string).unwrap_or_default();
    if !help.is_empty() && !help.ends_with('.') {
        help.push('.');
    }
    let values = arg.get_possible_values();
    let names: Vec<&str> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name())
        .collect();
    if arg.get_action().takes_values() && !names.is_empty() {
        let _ = write!(help, " One of {}.", names.join(", "));
    }
    help
}

/// Adds a text as comments of limited width.
fn comment(body: &mut String, text: &str) {
    for paragraph in text.lines() {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.len() > 1 && line.len() + 1 + word.len() > WIDTH {
                let _ = writeln!(body, "{line}");
                line.truncate(1);
            }
            let _ = write!(line, " {word}");
        }
        if line.len() > 1 {
            let _ = writeln!(body, "{line}");
        }
    }
}

/// A word as a shell reads it, on one line.
fn shell_word(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false if word.chars().any(char::is_control) => format!("${:?}", word).replace('"', "'"),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
