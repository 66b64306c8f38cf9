//! The program `burn-dist`: a launcher, a doctor for runs that failed, and tools for checkpoints.

use burn_dist_checkpoint::cli::Ckpt;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Starts and examines programs that use burn-dist, and works on their checkpoints.
#[derive(Parser)]
#[command(name = "burn-dist", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Launch(burn_dist_launch::cli::Command),
    Ckpt(Ckpt),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Launch(command) => command.run(),
        Command::Ckpt(ckpt) => ckpt.run(),
    }
}
