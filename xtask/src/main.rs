//! Checks of the workspace: `cargo xtask check` does what CI does.

mod backend_tests;
mod book;
mod check;
mod cuda;
mod features;
mod gpu;
mod kernels;
#[cfg(unix)]
mod trials;
mod unpatched;
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
cargo xtask book

  Makes a book of the guides, target/book/book, by mdbook, which it installs into the target folder. Needs crates.io once.

cargo xtask packages

  Packs what is published as the registry takes it, without building it. Needs crates.io.

cargo xtask kernels [ARGUMENTS OF TESTS]

  Compiles every kernel in CUDA for the GPUs it is meant for and checks its machine code, and runs kernels emulated on
  the host. Needs Python's pip, a C++ compiler, and PyPI once; no GPU.

cargo xtask cuda [seeds | gpu | float8 | conformance | burn | cubecl [ARGUMENTS OF TESTS] | called]

  Builds CUDA in software (dev/cuda-in-software) and runs its own tests, with 1, 2 and 8 GPUs that are none; with
  `seeds`, those of what works in 20 orders; with `gpu`, on 2 of them, the tests of burn-dist-gpu that want NCCL; with
  `float8`, those of its kernels; with `conformance`, collectives between 2 and 8 of them; with `burn`, those of Burn's
  CUDA backend (of both, `seeds` runs what several GPUs do in 20 orders); with `cubecl`, CubeCL's own. `called` says
  which functions they have called. Needs GCC; no GPU.

cargo xtask gpu FOLDER [--without-llvm]

  Builds all that is to run on NVIDIA GPUs, and packs it into FOLDER (300 MB) with a script for a machine where nothing
  can be built or downloaded: it runs tests, products in float8, and training beside PyTorch, and writes a report (under
  25 minutes). Needs no GPU; --without-llvm builds CubeCL without the LLVM that its build script downloads.

cargo xtask backend-tests PATH [tensor] [autodiff] [tensor_f16] [autodiff_f16]

  Builds Burn's own tests of backends from a checkout of Burn at PATH, runs them on plain Flex and on meshes of one to
  four ranks, with layouts as planned and fuzzed, and prints those that differ. Needs crates.io once.

cargo xtask trials faults [PART OF A NAME] | hosts [PART OF A NAME] | resumes [COUNT [SEED]] | steps [COUNT]

  Builds llama and burn-dist, or takes those of the folder that BURN_DIST_TRIAL_PROGRAMS names, and tries what becomes
  of training runs in two processes; the last line is JSON. Needs Linux and Open MPI. faults (40 min): SIGKILL, SIGSTOP
  and SIGTERM to each process at rendezvous, planning, step, save and exit, under mpirun and burn-dist run; each run has
  to end within 35 s with the code and the error that the guide has for it, and to leave no process, nor a file that the
  next start does not remove. A trial is named like /mpirun/save/stop/1. resumes: 20 runs that are killed at random
  moments go on, and become bit by bit the run that was not killed. steps: memory and threads over 20,000 of them. hosts
  (3 min, root): two network namespaces as two hosts, over TCP: the weights of one process bit by bit, sealed and not;
  then a link that is slow or drops all, a process that is killed or stopped, a firewall that refuses."
    )
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((command, steps)) if command == "check" => check::check(steps),
        Some((command, rest)) if command == "backend-tests" => backend_tests::backend_tests(rest),
        Some((command, rest)) if command == "book" => book::book(rest),
        Some((command, rest)) if command == "cuda" => cuda::cuda(rest),
        Some((command, rest)) if command == "gpu" => gpu::gpu(rest),
        Some((command, rest)) if command == "kernels" => kernels::kernels(rest),
        Some((command, [])) if command == "packages" => check::packages(),
        #[cfg(unix)]
        Some((command, rest)) if command == "trials" => trials::trials(rest),
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
