//! Trains a Llama-3-style model on a mesh of devices: `llama pretrain | finetune | generate | explain`.

mod cli;
mod commands;
mod data;
mod generate;
mod hf;
mod mesh;
mod model;
mod plot;
mod progress;
mod report;
mod train;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::run(&cli::Cli::parse()) {
        Ok(commands::End::Done) => ExitCode::SUCCESS,
        // 128 + SIGINT, as shells report it.
        Ok(commands::End::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
