//! Trains a mixture-of-experts decoder on a mesh of devices: `cargo run --release -p moe -- train --mesh ep=4`.

use std::process::ExitCode;

use burn_dist::trainer::exit::{End, exit};
use burn_dist::trainer::voice::complain;
use clap::Parser;
use moe::cli::{Cli, Command};
use moe::run;

fn main() -> ExitCode {
    let done = match &Cli::parse().command {
        Command::Train(args) => run::run(args),
        Command::Explain(args) => moe::explain::run(args).map(|()| End::Done),
    };
    match done {
        Ok(end) => exit(Ok(end)),
        Err(error) => {
            complain(&error);
            ExitCode::from(2)
        }
    }
}
