//! Checks that need more than Cargo: `cargo xtask kernels`.
//!
//! Kernels in CUDA are compiled and their machine code is looked at, on machines without a GPU. The compiler and the
//! disassembler come from PyPI, at the versions below, into the target folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What is installed: the compiler, headers, and what reads machine code (its first version on PyPI).
const WHEELS: &[&str] = &[
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-nvdisasm==13.2.51",
];

const USAGE: &str = "\
cargo xtask kernels [ARGUMENTS OF TESTS]

  Compiles every kernel in CUDA for the GPUs it is meant for and checks its machine code, and runs kernels emulated on
  the host. Needs Python's pip, a C++ compiler, and PyPI once; no GPU.";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let done = match arguments.next().as_deref() {
        Some("kernels") => kernels(arguments.collect()),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn kernels(arguments: Vec<String>) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("the workspace has a root")?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let toolkit = toolkit(&target.join("cuda-wheels"))?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let test = |which: &[&str]| {
        let mut test = Command::new(&cargo);
        test.current_dir(root).env("CUDA_PATH", &toolkit);
        test.args(["test", "-p", "burn-dist-kernels", "--features", "cuda"])
            .args(which);
        run(test.args(&arguments))
    };
    test(&["--lib", "--"])?;
    test(&[
        "--test",
        "machine_code",
        "--test",
        "emulated",
        "--",
        "--include-ignored",
    ])
}

/// Installs what is not there and returns the folder of the toolkit.
fn toolkit(folder: &Path) -> Result<PathBuf, String> {
    let mark = folder.join("installed");
    let wanted = WHEELS.join("\n");
    if fs::read_to_string(&mark).ok().as_ref() != Some(&wanted) {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ])
        .args(["--only-binary=:all:", "--target"])
        .arg(folder)
        .args(WHEELS);
        run(&mut pip)?;
        fs::write(&mark, &wanted).map_err(|error| format!("{}: {error}", mark.display()))?;
    }
    Ok(folder.join("nvidia/cu13"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(error) => Err(format!("{name} cannot be run: {error}")),
    }
}
