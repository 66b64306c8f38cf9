//! Reading a file: every section, key and value is checked, and all that is wrong is listed.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Fault, Problem, Problems};
use super::outline::{Config, Key, Section, key_name};
use super::value::{self, Kind};

/// An array has no more values.
const VALUES_MAX: usize = 10_000;
/// Messages show so much of a text of the file.
const SHOWN_CHARS: usize = 200;

/// A name in the file.
type Name<'a> = Spanned<std::borrow::Cow<'a, str>>;

/// The value of a key in a file, and where it is.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) section: &'static Section,
    pub(super) key: &'static Key,
    pub(super) kind: Kind,
    /// The values as texts of an option; one empty one for a switch.
    pub(super) values: Vec<OsString>,
    /// Where the key is.
    pub(super) at: (usize, usize),
}

impl Entry {
    /// Section and key.
    pub(super) fn name(&self) -> String {
        key_name(self.section, self.key)
    }
}

/// A file that is being read.
pub(super) struct Source<'a> {
    path: PathBuf,
    text: &'a str,
    config: &'a Config,
    /// The command that reads it.
    command: &'a str,
    problems: Problems,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &Path, text: &'a str, config: &'a Config, command: &'a str) -> Self {
        Self {
            path: path.to_path_buf(),
            text,
            config,
            command,
            problems: Problems::default(),
        }
    }

    /// Reads the file, in the order of its lines.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub(super) fn read(mut self) -> Result<Vec<Entry>, ConfigError> {
        let table = match DeTable::parse(self.text) {
            Ok(table) => table,
            Err(error) => {
                let at = self.at(&error.span().unwrap_or(0..0));
                let message = error.message().trim().replace('\n', ", ");
                return Err(self.fails_with(at, Fault::Syntax(message)));
            }
        };
        let mut entries = Vec::new();
        for (name, value) in in_order(table.get_ref()) {
            match value.get_ref() {
                DeValue::Table(table) => self.section(name, table, &mut entries),
                _ => {
                    let config = self.config;
                    self.problem(&name.span(), || Fault::Outside {
                        key: shown(name.get_ref()),
                        nearest: config.nearest_key(None, &shown(name.get_ref())),
                        known: config.section_names(),
                    });
                }
            }
        }
        if !self.problems.is_empty() {
            return Err(self.problems.into());
        }
        entries.sort_by_key(|entry| entry.at);
        Ok(entries)
    }

    fn section(&mut self, name: &Name<'_>, table: &DeTable<'_>, entries: &mut Vec<Entry>) {
        let section = name.get_ref().as_ref();
        let keys: Vec<_> = self
            .config
            .sections
            .iter()
            .filter(|found| found.name == section)
            .collect();
        if keys.is_empty() {
            let config = self.config;
            return self.problem(&name.span(), || Fault::UnknownSection {
                section: shown(section),
                nearest: config.nearest_section(&shown(section)),
                known: config.section_names(),
            });
        }
        for (key, value) in in_order(table) {
            let Some(found) = self.config.find(section, key.get_ref()) else {
                let (config, keys) = (self.config, keys.iter().flat_map(|section| section.keys));
                self.problem(&key.span(), || Fault::UnknownKey {
                    section: section.to_string(),
                    key: shown(key.get_ref()),
                    nearest: config.nearest_key(Some(section), &shown(key.get_ref())),
                    known: keys.map(|key| key.name.to_string()).collect(),
                });
                continue;
            };
            entries.extend(self.entry(found, key.span(), value));
        }
    }

    /// A key with its values, unless something is wrong with them.
    fn entry(
        &mut self,
        (section, key): (&'static Section, &'static Key),
        span: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Entry> {
        // `Config::faults` names keys without an option.
        let arg = self.config.option(self.command, section, key)?;
        let kind = Kind::of(arg)?;
        let all: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
            DeValue::Array(all) if kind.is_list => all.iter().collect(),
            found if kind.is_list => {
                self.wrong_type(value, (section, key), kind, found);
                return None;
            }
            _ => vec![value],
        };
        if all.len() > VALUES_MAX {
            let found = all.len();
            self.problem(&value.span(), || Fault::TooMany {
                key: key_name(section, key),
                found,
                max: VALUES_MAX,
            });
            return None;
        }
        let mut values = Vec::with_capacity(all.len());
        for value in all {
            let Some(text) = kind.text(value.get_ref()) else {
                self.wrong_type(value, (section, key), kind, value.get_ref());
                continue;
            };
            let Some(text) = text else { continue };
            if let Err(reason) = value::check(arg, &text) {
                self.problem(&value.span(), || Fault::Value {
                    key: key_name(section, key),
                    value: format!("{:?}", shown(&text)),
                    reason: shown(&reason),
                });
            }
            values.push(text.into());
        }
        Some(Entry {
            section,
            key,
            kind,
            values,
            at: self.at(&span),
        })
    }

    fn wrong_type(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        (section, key): (&Section, &Key),
        kind: Kind,
        found: &DeValue<'_>,
    ) {
        self.problem(&value.span(), || Fault::Type {
            key: key_name(section, key),
            takes: kind.takes(),
            found: value::found(found),
        });
    }

    /// Line and column of where a span begins, from 1.
    fn at(&self, span: &Range<usize>) -> (usize, usize) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }

    /// Adds a problem; `fault` is called if it is listed.
    fn problem(&mut self, span: &Range<usize>, fault: impl FnOnce() -> Fault) {
        let mut problems = std::mem::take(&mut self.problems);
        problems.push_with(|| {
            let (line, column) = self.at(span);
            Problem {
                file: self.path.clone(),
                line,
                column,
                fault: fault(),
            }
        });
        self.problems = problems;
    }

    fn fails_with(self, (line, column): (usize, usize), fault: Fault) -> ConfigError {
        let problem = Problem {
            file: self.path,
            line,
            column,
            fault,
        };
        ConfigError::File {
            problems: vec![problem],
            more: 0,
        }
    }
}

/// The rows of a table from top to bottom, so that the first problems are those that are listed.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Name<'i>, &'t Spanned<DeValue<'i>>)> {
    let mut rows: Vec<_> = table.iter().collect();
    rows.sort_by_key(|(name, _)| name.span().start);
    rows
}

/// A text of the file as messages have it: no more than a line.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
