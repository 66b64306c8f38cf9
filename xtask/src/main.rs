//! Checks of the workspace: `cargo xtask check` does what CI does.

mod check;
mod features;
mod kernels;
mod workspace;

use std::env;
use std::process::ExitCode;

fn usage() -> String {
    let steps: String = check::STEPS
        .iter()
        .map(|step| format!("    {:<12} {}\n", step.name, step.what))
        .collect();
    format!(
        "\
cargo xtask check [STEPS]

  Does what CI does, in this order, or only the named steps; prints how long each took.

{steps}
cargo xtask kernels [ARGUMENTS OF TESTS]

  Compiles every kernel in CUDA for the GPUs it is meant for and checks its machine code, and runs kernels emulated on
  the host. Needs Python's pip, a C++ compiler, and PyPI once; no GPU."
    )
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((command, steps)) if command == "check" => check::check(steps),
        Some((command, rest)) if command == "kernels" => kernels::kernels(rest),
        Some((help, _)) if ["help", "--help", "-h"].contains(&help.as_str()) => {
            println!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Some((other, _)) => Err(format!("no command `{other}`\n\n{}", usage())),
        None => Err(usage()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
