//! The program `burn-dist`: what is asked, and who does it.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

mod doctor;
mod run;

/// Starts and examines programs that use burn-dist.
#[derive(Parser)]
#[command(name = "burn-dist", version, about, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    /// Says in words what went wrong, from the flight records of a run.
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Supervise(run::Supervise),
}

/// Does what the command line asks.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => run.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Supervise(supervise) => supervise.run(),
    }
}
