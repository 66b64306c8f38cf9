//! CUDA in software: builds `dev/cuda-in-software`, whose libraries have the names of NVIDIA's, and runs on it its own
//! tests, and the programs of Burn that want a GPU.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{self, run};

/// The libraries, and the names that programs look for.
const LIBRARIES: &[(&str, &str)] = &[
    ("libcuda.so", "libcuda.so.1"),
    ("libnccl.so", "libnccl.so.2"),
    ("libnvrtc.so", "libnvrtc.so.13"),
];

/// The variable that says which checks the driver leaves out.
const UNCHECKED: &str = "CUDA_IN_SOFTWARE_UNCHECKED";

/// How many GPUs, and the orders of work that each is tried with.
const MACHINES: &[(&str, &[&str])] = &[("1", &["0", "1"]), ("2", &["2", "3"])];

/// Runs the tests of the folder itself, with `gpu` those of burn-dist's own functions, and with `burn` those of Burn's
/// backend, whose names may follow.
pub(crate) fn cuda(arguments: &[String]) -> Result<(), String> {
    let target = workspace::target().join("cuda-in-software");
    let libraries = build(&target)?;
    match arguments.split_first() {
        None => own(&target, &libraries),
        Some((word, [])) if word == "gpu" => gpu(&libraries),
        Some((word, arguments)) if word == "burn" => burn(&libraries, arguments),
        Some((word, _)) => Err(format!("{word}: neither `gpu` nor `burn`")),
    }
}

/// Returns a Cargo for the workspace of the folder.
fn cargo(target: &Path) -> Command {
    let mut cargo = workspace::cargo();
    cargo.current_dir(workspace::root().join("dev/cuda-in-software"));
    cargo.env("CARGO_TARGET_DIR", target);
    cargo
}

/// Builds the libraries and returns the folder in which they have NVIDIA's names.
fn build(target: &Path) -> Result<PathBuf, String> {
    let packages = ["software-cuda", "software-nccl", "software-nvrtc"];
    let packages = packages.iter().flat_map(|package| ["-p", package]);
    run(cargo(target).args(["build", "--locked"]).args(packages))?;
    let folder = target.join("lib");
    let copied = LIBRARIES.iter().try_for_each(|(made, name)| {
        fs::create_dir_all(&folder)?;
        // A program that runs keeps what it has opened.
        let new = folder.join(format!("{name}.new"));
        fs::copy(target.join("debug").join(made), &new)?;
        fs::rename(new, folder.join(name))
    });
    copied.map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Runs the folder's own tests, on each machine and in each order.
fn own(target: &Path, libraries: &Path) -> Result<(), String> {
    run(cargo(target).args(["test", "--locked", "-p", "software-nvrtc"]))?;
    for (devices, seeds) in MACHINES {
        for seed in *seeds {
            println!("CUDA in software: {devices} GPUs, seed {seed}");
            let mut test = cargo(target);
            test.args(["test", "--locked", "-p", "cuda-in-software"]);
            run(machine(&mut test, libraries, devices).env("CUDA_IN_SOFTWARE_SEED", seed))?;
        }
    }
    Ok(())
}

/// Runs the tests of burn-dist-gpu that want a driver, NCCL and two GPUs.
fn gpu(libraries: &Path) -> Result<(), String> {
    let mut test = workspace::cargo();
    test.args(["test", "-p", "burn-dist-gpu", "--features", "cuda", "--lib"]);
    test.args(["real", "--", "--ignored", "--test-threads=1"]);
    run(machine(&mut test, libraries, "2"))
}

/// Runs the tests of `Dist<Cuda>` on Burn 0.21, whose CubeCL hands CUDA's compiler texts, on one GPU: those of several
/// wait on a GPU for words by a kernel that CubeCL gives its parameters only from compute capability 7.0 on.
fn burn(libraries: &Path, arguments: &[String]) -> Result<(), String> {
    let mut test = workspace::cargo();
    test.args(["test", "-p", "promises-021", "--features", "cuda"]);
    test.args(["--test", "cuda", "--", "--ignored", "--skip", "gpu"]);
    // What CubeCL 0.10 does itself, see the folder's README.
    if env::var_os(UNCHECKED).is_none() {
        test.env(UNCHECKED, "unwritten,order");
    }
    run(machine(&mut test, libraries, "1").args(arguments))
}

/// Sets what a program needs to find the libraries, and what they are to be.
fn machine<'a>(program: &'a mut Command, libraries: &Path, devices: &str) -> &'a mut Command {
    program
        .env("LD_LIBRARY_PATH", libraries)
        .env("CUDA_IN_SOFTWARE_DEVICES", devices)
        // CubeCL looks for headers there; the compiler has its own.
        .env("CUDA_PATH", libraries)
}
