//! A command line over a file over the defaults.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::error::{ConfigError, Fault, Problem, Problems};
use super::file::{Entry, Source};
use super::outline::{CONFIG, Config, UNSET, key_name, place_of, relaxed};
use super::resolved::Resolved;
use super::value::argument;
use crate::files;

/// No configuration is longer; its parser takes a hundred times as much.
pub(super) const FILE_BYTES_MAX: u64 = 512 << 10;

/// A command line and its file, read together.
#[derive(Debug)]
pub struct Read {
    /// The arguments, as if all of them had been on the command line.
    pub matches: ArgMatches,
    /// The same as a file.
    pub resolved: Resolved,
}

/// The content of a file beside the command line.
struct FromFile<'a> {
    command: &'a Command,
    path: PathBuf,
    /// Keys that are options of the command, and are not on its line.
    mine: Vec<Entry>,
    /// Entries that are options of other commands.
    others: Vec<Entry>,
}

impl Config {
    /// Reads the arguments of the program, and the file that they name with `--config`. An option of the command line
    /// takes the place of the same key in the file, of all its values, and of keys that exclude it. What is wrong ends
    /// the program.
    pub fn read(&self) -> Read {
        self.try_read(std::env::args_os())
            .unwrap_or_else(|error| error.exit())
    }

    /// Reads any arguments as [`Self::read`] does; the first one is the program's name.
    ///
    /// # Errors
    /// If the command line is wrong, or the file.
    pub fn try_read(
        &self,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Read, ConfigError> {
        let line: Vec<OsString> = args.into_iter().map(Into::into).collect();
        // Alone, the line may lack what the file has. What is wrong with it, clap says below.
        let alone = relaxed(self.command()).try_get_matches_from(&line);
        let file = alone.map_or(Ok(None), |alone| self.file(&line, &alone))?;
        let arguments = file.iter().flat_map(|file| {
            let mine = file.mine.iter();
            mine.flat_map(|entry| self.arguments(file.command, entry))
        });
        let whole = with(&line, arguments.collect());
        let matches = self.command().clone().try_get_matches_from(whole);
        let matches = matches.map_err(|error| match &file {
            Some(file) if error.kind() == ErrorKind::MissingRequiredArgument => {
                self.missing(file, error)
            }
            _ => error.into(),
        })?;
        let others = file.map(|file| file.others).unwrap_or_default();
        let resolved = self.resolved(&line, &matches, others);
        Ok(Read { matches, resolved })
    }

    /// Reads the file that the command line names, if it names one.
    fn file(
        &self,
        line: &[OsString],
        alone: &ArgMatches,
    ) -> Result<Option<FromFile<'_>>, ConfigError> {
        let (name, given) = alone
            .subcommand()
            .unwrap_or((self.command().get_name(), alone));
        let mut commands = self.commands();
        let command = commands.find(|command| command.get_name() == name);
        let path = given.try_get_one::<PathBuf>(CONFIG).ok().flatten();
        let (Some(command), Some(path)) = (command, path) else {
            return Ok(None);
        };
        let text =
            files::read_text(path, FILE_BYTES_MAX).map_err(|source| ConfigError::Unreadable {
                path: path.clone(),
                source,
            })?;
        let mut entries = Source::new(path, &text, self, name).read()?;
        self.unset(command, given, &mut entries)?;
        let (mine, others): (Vec<Entry>, Vec<Entry>) = entries
            .into_iter()
            .partition(|entry| self.of_key(command, entry.section, entry.key).is_some());
        let mine = self.over(command, given, line, mine);
        self.check_conflicts(command, path, &mine)?;
        Ok(Some(FromFile {
            command,
            path: path.clone(),
            mine,
            others,
        }))
    }

    fn resolved(&self, line: &[OsString], matches: &ArgMatches, others: Vec<Entry>) -> Resolved {
        let (name, matches) = matches
            .subcommand()
            .unwrap_or((self.command().get_name(), matches));
        let mut commands = self.commands();
        match commands.find(|command| command.get_name() == name) {
            Some(command) => Resolved::new(self.sections, command, line, matches, others),
            None => Resolved::default(),
        }
    }

    /// Takes back what the command line unsets.
    fn unset(
        &self,
        command: &Command,
        given: &ArgMatches,
        entries: &mut Vec<Entry>,
    ) -> Result<(), clap::Error> {
        for name in given.get_many::<String>(UNSET).into_iter().flatten() {
            let (section, key) = name.split_once('.').unwrap_or(("", name));
            let Some((section, key)) = self.find(section, key) else {
                let nearest = self.nearest_key(Some(section), key).map(|nearest| {
                    match nearest.contains('.') {
                        true => nearest,
                        false => format!("{section}.{nearest}"),
                    }
                });
                let nearest = nearest.map(|nearest| format!("; did you mean `{nearest}`?"));
                let message = format!(
                    "there is no key `{name}` to leave out with --{UNSET}{}",
                    nearest.unwrap_or_default()
                );
                return Err(command.clone().error(ErrorKind::InvalidValue, message));
            };
            entries.retain(|entry| !std::ptr::eq(entry.key, key) || entry.section != section);
        }
        Ok(())
    }

    /// An entry as arguments of a command.
    fn arguments(&self, command: &Command, entry: &Entry) -> Vec<OsString> {
        let arg = self.of_key(command, entry.section, entry.key);
        let arguments = arg.map(|arg| entry.values.iter().map(|value| argument(arg, value)));
        arguments.into_iter().flatten().collect()
    }

    /// Refuses keys of a file that exclude each other.
    fn check_conflicts(
        &self,
        command: &Command,
        path: &Path,
        entries: &[Entry],
    ) -> Result<(), ConfigError> {
        let alone = relaxed(command).no_binary_name(true);
        let both = |entries: &[&Entry]| {
            let arguments = entries
                .iter()
                .flat_map(|entry| self.arguments(command, entry));
            exclude(&alone, arguments.collect())
        };
        if !both(&entries.iter().collect::<Vec<_>>()) {
            return Ok(());
        }
        let mut problems = Problems::default();
        for (index, entry) in entries.iter().enumerate() {
            for before in entries[..index]
                .iter()
                .filter(|before| both(&[before, entry]))
            {
                let fault = Fault::Conflict {
                    key: entry.name(),
                    other: before.name(),
                    line: before.at.0,
                };
                problems.push(problem(path, entry, fault));
            }
        }
        Err(problems.into())
    }

    /// Returns the entries of the file that remain beside what the command line has.
    fn over(
        &self,
        command: &Command,
        given: &ArgMatches,
        line: &[OsString],
        entries: Vec<Entry>,
    ) -> Vec<Entry> {
        let relaxed = relaxed(self.command());
        let remains = |entry: &Entry| {
            let Some(arg) = self.of_key(command, entry.section, entry.key) else {
                return false;
            };
            given.value_source(arg.get_id().as_str()) != Some(ValueSource::CommandLine)
                && !exclude(&relaxed, with(line, self.arguments(command, entry)))
        };
        entries.into_iter().filter(remains).collect()
    }

    /// The keys of the file that need what is missing; the error as it is, if it is not for one of them.
    fn missing(&self, file: &FromFile<'_>, error: clap::Error) -> ConfigError {
        let command = file.command;
        // What is missing if these are the only options.
        let lacks = |arguments: Vec<OsString>| -> BTreeSet<String> {
            let alone = command.clone().no_binary_name(true);
            match alone.try_get_matches_from(arguments) {
                Err(error) => needed(&error),
                Ok(_) => BTreeSet::new(),
            }
        };
        let whole = needed(&error);
        let anyway = lacks(Vec::new());
        let problems = file.mine.iter().filter_map(|entry| {
            let lacks = lacks(self.arguments(command, entry));
            let needed = lacks
                .difference(&anyway)
                .filter(|option| whole.contains(*option));
            let needed: Vec<String> = needed
                .map(|option| self.with_key(command, option))
                .collect();
            let needed = (!needed.is_empty()).then_some(needed)?;
            let fault = Fault::Requires {
                key: entry.name(),
                needed,
            };
            Some(problem(&file.path, entry, fault))
        });
        let problems: Vec<Problem> = problems.collect();
        match problems.is_empty() {
            true => error.into(),
            false => ConfigError::File { problems, more: 0 },
        }
    }

    /// An option as clap shows it, with its key.
    fn with_key(&self, command: &Command, option: &str) -> String {
        // Only then does it know how its options are shown.
        let mut command = command.clone();
        command.build();
        let mut args = command.get_arguments();
        let arg = args.find(|arg| arg.to_string() == option);
        let long = arg.and_then(Arg::get_long);
        match long.and_then(|long| place_of(self.sections, command.get_name(), long)) {
            Some((section, key)) => format!("`{}` ({option})", key_name(section, key)),
            None => option.to_string(),
        }
    }
}

/// A command line with more options.
fn with(line: &[OsString], options: Vec<OsString>) -> Vec<OsString> {
    // After `--` there are none.
    let end = line.iter().position(|argument| argument == "--");
    let (before, after) = line.split_at(end.unwrap_or(line.len()));
    [before, &options, after].concat()
}

/// Returns whether arguments exclude each other.
fn exclude(relaxed: &Command, line: Vec<OsString>) -> bool {
    let taken = relaxed.clone().try_get_matches_from(line);
    taken.is_err_and(|error| error.kind() == ErrorKind::ArgumentConflict)
}

/// The options that clap misses.
fn needed(error: &clap::Error) -> BTreeSet<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(options))) => {
            options.iter().cloned().collect()
        }
        _ => BTreeSet::new(),
    }
}

fn problem(path: &Path, entry: &Entry, fault: Fault) -> Problem {
    Problem {
        file: path.to_path_buf(),
        line: entry.at.0,
        column: entry.at.1,
        fault,
    }
}
