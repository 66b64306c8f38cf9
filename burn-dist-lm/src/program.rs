//! A program of this crate's commands, under any name.

use std::process::ExitCode;

use crate::cli::Cli;
use crate::commands::{self, End};
use crate::{mesh, voice};

/// The name of a program that has this crate's commands: its help and the configuration files that it writes say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// One line about it, for its help.
    pub about: &'static str,
}

impl Default for Program {
    /// The program `burn-dist-lm`.
    fn default() -> Self {
        Self {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            about: env!("CARGO_PKG_DESCRIPTION"),
        }
    }
}

impl Program {
    /// Does what the command line asks for; returns the code that the program exits with. A command line that cannot be
    /// read ends the program.
    pub fn main(self) -> ExitCode {
        match commands::run(&Cli::read(self)) {
            Ok(End::Done) => ExitCode::SUCCESS,
            Ok(End::Interrupted(code)) => ExitCode::from(code),
            // As of any configuration that cannot be.
            Ok(End::Unfit) => ExitCode::from(78),
            Err(error) => {
                voice::complain(&error);
                ExitCode::from(mesh::exit_code(&error))
            }
        }
    }

    /// Name and version, as configuration files have them.
    pub(crate) fn versioned(self) -> String {
        format!("{} {}", self.name, self.version)
    }
}
