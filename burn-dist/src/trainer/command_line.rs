//! A command line whose options may stand in a file.

use std::ffi::OsString;

use clap::{Arg, CommandFactory, FromArgMatches};

use super::args::TrainArgs;
use super::exit::End;
use super::program::Program;
use super::voice::say;
use crate::train::config::{Config, ConfigError, Section};

/// A command line with commands that train: its options stand in sections of a file too.
pub trait CommandLine: CommandFactory + FromArgMatches {
    /// Returns where each option stands in a file ([`sections`](super::sections) has those of the trainer).
    fn sections() -> &'static [Section];

    /// Options whose help says what a program's own defaults are.
    const HELP: &'static [(&'static str, &'static str)];

    /// The options of a command that trains, which keeps all of them; `None` of other commands.
    fn trains(&mut self) -> Option<&mut TrainArgs>;

    /// The options of a program, with their places in a file.
    fn config(program: Program) -> Config {
        let command = Self::command().name(program.name);
        let command = command.version(program.version).about(program.about);
        let with_defaults = |arg: Arg| {
            let mut known = Self::HELP.iter();
            let known = known.find(|(option, _)| arg.get_long() == Some(option));
            match known {
                Some((_, help)) => arg.help(*help),
                None => arg,
            }
        };
        let command = command.mut_subcommands(|command| command.mut_args(with_defaults));
        Config::new(command, Self::sections())
    }

    /// Reads the command line, and the file that it names. What is wrong ends the program.
    fn read(program: Program) -> Self {
        Self::try_read(program, std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Does the same as [`Self::read`], of any arguments.
    ///
    /// # Errors
    /// If the command line is wrong, or the file.
    fn try_read(
        program: Program,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self, ConfigError> {
        let read = Self::config(program).try_read(args)?;
        let mut line = Self::from_arg_matches(&read.matches)?;
        if let Some(args) = line.trains() {
            args.resolved = read.resolved;
            args.program = program;
        }
        Ok(line)
    }
}

/// Prints the configuration file that the options of a run make: the command `config`.
///
/// # Errors
/// If a value has no text form.
pub fn show_config(args: &TrainArgs) -> anyhow::Result<End> {
    let text = args.resolved.to_toml(&args.program.versioned())?;
    say!("{}", text.trim_end());
    Ok(End::Done)
}
