//! Trains a Llama-3-style model on a mesh of devices: `llama pretrain | finetune | generate | explain | simulate |
//! config | mesh`.

use llama::{cli, commands, mesh, voice};

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(&cli::Cli::read()) {
        Ok(commands::End::Done) => ExitCode::SUCCESS,
        Ok(commands::End::Interrupted(code)) => ExitCode::from(code),
        // As of any configuration that cannot be.
        Ok(commands::End::Unfit) => ExitCode::from(78),
        Err(error) => {
            voice::complain(&error);
            ExitCode::from(mesh::exit_code(&error))
        }
    }
}
