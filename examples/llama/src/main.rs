//! Trains a Llama-3-style model on a mesh of devices: `llama pretrain | finetune | evaluate | generate | explain |
//! simulate | config | mesh`.
//!
//! The decoder, its data and all commands are those of `burn-dist-lm`, under a name of its own.

use std::process::ExitCode;

use burn_dist_lm::Program;

fn main() -> ExitCode {
    burn_dist_lm::main(Program {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        about: env!("CARGO_PKG_DESCRIPTION"),
    })
}
