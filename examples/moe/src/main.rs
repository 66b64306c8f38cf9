//! Trains a mixture-of-experts decoder on a mesh of devices: `cargo run --release -p moe -- train --mesh ep=4`.

use std::process::ExitCode;

use burn_dist::trainer::command_line::CommandLine;
use burn_dist::trainer::exit::exit;
use burn_dist::trainer::program::Program;
use moe::cli::Cli;

fn main() -> ExitCode {
    exit(moe::train::run(&Cli::read(Program {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        about: env!("CARGO_PKG_DESCRIPTION"),
    })))
}
