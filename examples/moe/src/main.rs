//! Trains a mixture-of-experts decoder on a mesh of devices: `cargo run --release -p moe -- train --mesh ep=4`.

use std::process::ExitCode;

use clap::Parser;
use moe::cli::{Cli, Command};
use moe::run::{self, End};

fn main() -> ExitCode {
    let done = match &Cli::parse().command {
        Command::Train(args) => run::run(args),
        Command::Explain(args) => moe::explain::run(args).map(|()| End::Done),
    };
    match done {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Interrupted(code)) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
