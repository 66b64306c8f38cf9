//! Trains language models on a mesh of devices: `burn-dist-lm train | finetune | evaluate | generate | explain |
//! simulate | plan | convert | config | mesh`.

use std::process::ExitCode;

fn main() -> ExitCode {
    burn_dist_lm::main(burn_dist_lm::PROGRAM)
}
