//! Reading a file: every section, key and value is checked, and all that is wrong is told.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Fault, Problem};
use super::outline::{Config, Key, Section, key_name};
use super::value::{self, Kind};

/// What a file says of a key.
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
    problems: Vec<Problem>,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &Path, text: &'a str, config: &'a Config, command: &'a str) -> Self {
        Self {
            path: path.to_path_buf(),
            text,
            config,
            command,
            problems: Vec::new(),
        }
    }

    /// What the file says, in the order of its lines.
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
        for (name, value) in table.get_ref() {
            match value.get_ref() {
                DeValue::Table(table) => self.section(name, table, &mut entries),
                _ => {
                    let key = name.get_ref().to_string();
                    let nearest = self.config.nearest_key(None, &key);
                    let known = self.config.section_names();
                    self.problem(
                        &name.span(),
                        Fault::Outside {
                            key,
                            nearest,
                            known,
                        },
                    );
                }
            }
        }
        if !self.problems.is_empty() {
            self.problems
                .sort_by_key(|problem| (problem.line, problem.column));
            return Err(ConfigError::File {
                problems: self.problems,
            });
        }
        entries.sort_by_key(|entry| entry.at);
        Ok(entries)
    }

    fn section(
        &mut self,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        table: &DeTable<'_>,
        entries: &mut Vec<Entry>,
    ) {
        let section = name.get_ref().as_ref();
        let keys: Vec<_> = self
            .config
            .sections
            .iter()
            .filter(|found| found.name == section)
            .collect();
        if keys.is_empty() {
            let fault = Fault::UnknownSection {
                section: section.to_string(),
                nearest: self.config.nearest_section(section),
                known: self.config.section_names(),
            };
            return self.problem(&name.span(), fault);
        }
        for (key, value) in table {
            let Some(found) = self.config.find(section, key.get_ref()) else {
                let keys = keys.iter().flat_map(|section| section.keys);
                let fault = Fault::UnknownKey {
                    section: section.to_string(),
                    key: key.get_ref().to_string(),
                    nearest: self.config.nearest_key(Some(section), key.get_ref()),
                    known: keys.map(|key| key.name.to_string()).collect(),
                };
                self.problem(&key.span(), fault);
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
        let mut values = Vec::with_capacity(all.len());
        for value in all {
            let Some(text) = kind.text(value.get_ref()) else {
                self.wrong_type(value, (section, key), kind, value.get_ref());
                continue;
            };
            let Some(text) = text else { continue };
            if let Err(reason) = value::check(arg, &text) {
                let fault = Fault::Value {
                    key: key_name(section, key),
                    value: format!("{:?}", text),
                    reason,
                };
                self.problem(&value.span(), fault);
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
        let fault = Fault::Type {
            key: key_name(section, key),
            takes: kind.takes(),
            found: value::found(found),
        };
        self.problem(&value.span(), fault);
    }

    /// Line and column of where a span begins, from 1.
    fn at(&self, span: &Range<usize>) -> (usize, usize) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }

    fn problem(&mut self, span: &Range<usize>, fault: Fault) {
        let (line, column) = self.at(span);
        self.problems.push(Problem {
            file: self.path.clone(),
            line,
            column,
            fault,
        });
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
        }
    }
}
