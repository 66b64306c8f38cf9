//! Trains a Llama-3-style model on a mesh of devices: `llama pretrain | finetune | generate | explain | mesh`.

use burn_dist::comm::World;
use llama::{cli, commands, mesh};

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::run(&cli::Cli::parse()) {
        Ok(commands::End::Done) => ExitCode::SUCCESS,
        // 128 + SIGINT, as shells report it.
        Ok(commands::End::Interrupted) => ExitCode::from(130),
        Err(error) => {
            let process = match World::of_launcher() {
                Ok(Some(world)) => format!("process {}: ", world.process()),
                _ => String::new(),
            };
            eprintln!("{process}error: {}", in_one_line(&error));
            ExitCode::from(mesh::exit_code(&error))
        }
    }
}

/// An error with its causes, without those that the text before them already tells.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            if !line.is_empty() {
                line += ": ";
            }
            line += &cause;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let error = || anyhow::anyhow!("no space").context("cannot write a: no space");
        assert_eq!(in_one_line(&error()), "cannot write a: no space");
        let error = error().context("the run failed");
        assert_eq!(
            in_one_line(&error),
            "the run failed: cannot write a: no space"
        );
    }
}
