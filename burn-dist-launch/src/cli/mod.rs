//! Commands of the program `burn-dist`: what is asked, and who does it.

use clap::Subcommand;
use std::process::ExitCode;

mod doctor;
mod run;

/// Commands that start and examine programs that use burn-dist.
#[derive(Subcommand)]
pub enum Command {
    #[expect(missing_docs, reason = "its own text is the help of the command")]
    Run(run::Run),
    /// Says in words what went wrong, from the flight records of a run.
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    #[expect(missing_docs, reason = "its own text is the help of the command")]
    Supervise(run::Supervise),
}

impl Command {
    /// Does what the command line asks.
    pub fn run(self) -> ExitCode {
        match self {
            Self::Run(run) => run.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Supervise(supervise) => supervise.run(),
        }
    }
}
