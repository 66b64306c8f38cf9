//! Trains a mixture-of-experts decoder on a mesh of devices: `cargo run --release -p moe -- train --mesh ep=4`.

use std::process::ExitCode;

use burn_dist::trainer::program::Program;
use burn_dist::trainer::task;
use moe::program::Options;

fn main() -> ExitCode {
    task::main::<Options>(Program {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        about: env!("CARGO_PKG_DESCRIPTION"),
    })
}
