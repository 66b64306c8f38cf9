//! Errors of a configuration.

use std::io::Write;
use std::path::PathBuf;

use thiserror::Error;

/// Why a configuration cannot be read or written.
#[derive(Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The command line is wrong, or asks for help: what clap says of it.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong: all that is, from top to bottom.
    #[error("{}", lines(problems, *more))]
    File {
        /// At least one, and no more than are read at once.
        problems: Vec<Problem>,
        /// How many there are besides.
        more: usize,
    },
    /// A value has no form in a file.
    #[error(
        "--{option} has a value that is not UTF-8, and a configuration file is: give it another name"
    )]
    NotUtf8 {
        /// The option's long name.
        option: String,
    },
}

burn_dist_mesh::debug_by_message!(ConfigError);

impl ConfigError {
    /// Prints it and ends the program: with 2, or 0 if help or the version was asked for.
    pub fn exit(&self) -> ! {
        match self {
            Self::CommandLine(error) => error.exit(),
            other => {
                // Whoever has closed it does not read it.
                let _ = writeln!(std::io::stderr(), "error: {other}");
                std::process::exit(2)
            }
        }
    }
}

fn lines(problems: &[Problem], more: usize) -> String {
    let mut lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    if more > 0 {
        lines.push(format!("and {more} more: mend these first"));
    }
    lines.join("\n       ")
}

/// How many problems are listed at once.
const PROBLEMS_MAX: usize = 20;

/// The problems of a file as they are found: the first ones, and how many there are.
#[derive(Debug, Default)]
pub(super) struct Problems {
    first: Vec<Problem>,
    more: usize,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        self.push_with(|| problem);
    }

    /// Adds one, which is made up only if it is listed.
    pub(super) fn push_with(&mut self, problem: impl FnOnce() -> Problem) {
        match self.first.len() < PROBLEMS_MAX {
            true => self.first.push(problem()),
            false => self.more += 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl From<Problems> for ConfigError {
    fn from(Problems { mut first, more }: Problems) -> Self {
        first.sort_by_key(|problem| (problem.line, problem.column));
        Self::File {
            problems: first,
            more,
        }
    }
}

/// Something that is wrong in a file, and where.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{}:{line}:{column}: {fault}", file.display())]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The character of the line, from 1.
    pub column: usize,
    /// The fault.
    pub fault: Fault,
}

burn_dist_mesh::debug_by_message!(Problem);

/// A fault in a file.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is not TOML.
    #[error("{0}")]
    Syntax(String),
    /// A table that is no section.
    #[error("there is no section [{section}]; {}", advice(nearest, known))]
    UnknownSection {
        /// Its name.
        section: String,
        /// The name that may have been meant.
        nearest: Option<String>,
        /// All sections.
        known: Vec<String>,
    },
    /// A key that its section does not have.
    #[error("there is no key `{key}` in [{section}]; {}", advice(nearest, known))]
    UnknownKey {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The key that may have been meant; with its section, if that is another one.
        nearest: Option<String>,
        /// All keys of the section.
        known: Vec<String>,
    },
    /// A key before the first section.
    #[error("`{key}` stands in no section; {}", advice(nearest, known))]
    Outside {
        /// The key.
        key: String,
        /// The key that may have been meant, with its section.
        nearest: Option<String>,
        /// All sections.
        known: Vec<String>,
    },
    /// A value of the wrong type.
    #[error("`{key}` takes {takes}, and this is {found}")]
    Type {
        /// Section and key.
        key: String,
        /// The values that it takes.
        takes: &'static str,
        /// The value that it has.
        found: String,
    },
    /// A value that the option does not take.
    #[error("`{key}` cannot be {value}: {reason}")]
    Value {
        /// Section and key.
        key: String,
        /// The value.
        value: String,
        /// Why not, in the words of the option's parser.
        reason: String,
    },
    /// More values than any option takes.
    #[error("`{key}` has {found} values: an array has at most {max}")]
    TooMany {
        /// Section and key.
        key: String,
        /// How many it has.
        found: usize,
        /// How many it may have.
        max: usize,
    },
    /// A value that excludes another one of the file.
    #[error("`{key}` cannot be given with `{other}` (line {line}): leave out one of them")]
    Conflict {
        /// Section and key.
        key: String,
        /// Section and key of the other one.
        other: String,
        /// The line of the other one.
        line: usize,
    },
    /// A key that means nothing without another one.
    #[error("`{key}` needs {}: give it, or leave out `{key}`", needed.join(", "))]
    Requires {
        /// Section and key.
        key: String,
        /// The options that are missing.
        needed: Vec<String>,
    },
}

burn_dist_mesh::debug_by_message!(Fault);

fn advice(nearest: &Option<String>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("there are {}", known.join(", ")),
    }
}
