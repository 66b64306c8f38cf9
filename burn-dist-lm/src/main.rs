//! Trains language models on a mesh of devices: `burn-dist-lm train | finetune | generate | explain | simulate | config
//! | mesh`.

use std::process::ExitCode;

use burn_dist_lm::Program;

fn main() -> ExitCode {
    Program::default().main()
}
