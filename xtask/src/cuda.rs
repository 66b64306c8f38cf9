//! CUDA in software: builds `dev/cuda-in-software`, whose libraries have the names of NVIDIA's, and runs on it its own
//! tests, and the programs of Burn that want a GPU.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{self, run};

/// The libraries, and the names that programs look for.
const LIBRARIES: &[(&str, &str)] = &[
    ("libcublasLt.so", "libcublasLt.so.13"),
    ("libcuda.so", "libcuda.so.1"),
    // burn-dist looks for the second name, and cudarc, for CubeCL, for the first.
    ("libnccl.so", "libnccl.so"),
    ("libnccl.so", "libnccl.so.2"),
    ("libnvrtc.so", "libnvrtc.so.13"),
];

/// The variable that says which checks the driver leaves out.
const UNCHECKED: &str = "CUDA_IN_SOFTWARE_UNCHECKED";

/// How many GPUs, and the orders of work that each is tried with: half of the orders turn threads and blocks round.
const MACHINES: &[(&str, &[u32])] = &[("1", &[0, 1]), ("2", &[2, 3]), ("8", &[4])];

/// Orders of work that `seeds`, `conformance seeds` and `burn seeds` try.
const SEEDS: u32 = 20;

/// The variable that says which order.
const SEED: &str = "CUDA_IN_SOFTWARE_SEED";

/// Runs the tests of the folder itself, with `seeds` in many orders, with `gpu` those of burn-dist's own functions, with
/// `float8` those of its kernels, with `conformance` those of collectives between GPUs, with `burn` those of Burn's
/// backend and with `cubecl` CubeCL's own, whose names may follow; `called` says which functions these five have called.
pub(crate) fn cuda(arguments: &[String]) -> Result<(), String> {
    let target = workspace::target().join("cuda-in-software");
    let libraries = build(&target)?;
    match arguments.split_first() {
        None => own(&target, &libraries),
        Some((word, [])) if word == "seeds" => seeds(&target, &libraries),
        Some((word, [])) if word == "called" => called(&libraries),
        Some((word, [])) if word == "gpu" => gpu(&libraries),
        Some((word, [])) if word == "float8" => float8(&libraries),
        Some((word, arguments)) if word == "conformance" => conformance(&libraries, arguments),
        Some((word, arguments)) if word == "burn" => burn(&libraries, arguments),
        Some((word, arguments)) if word == "cubecl" => cubecl(&libraries, arguments),
        Some((word, _)) => Err(format!(
            "{word}: none of `seeds`, `called`, `gpu`, `float8`, `conformance`, `burn` and `cubecl`"
        )),
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
    let packages = [
        "software-cublaslt",
        "software-cuda",
        "software-nccl",
        "software-nvrtc",
    ];
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

/// Runs the folder's own tests, on each machine and in each order, and those of burn-dist's own functions.
fn own(target: &Path, libraries: &Path) -> Result<(), String> {
    let parts = ["software-cublaslt", "software-cuda", "software-nvrtc"];
    let parts = parts.iter().flat_map(|package| ["-p", package]);
    run(cargo(target).args(["test", "--locked"]).args(parts))?;
    for (devices, seeds) in MACHINES {
        for seed in *seeds {
            run(&mut on(target, libraries, devices, *seed, &[]))?;
        }
    }
    // Tensor maps came with 9.0.
    let mut tensor_maps = on(target, libraries, "1", 0, &["--test", "tensor_maps"]);
    run(tensor_maps.env(CAPABILITY, "9.0"))?;
    gpu(libraries)
}

/// Runs what works, on several GPUs and between processes, in many orders.
fn seeds(target: &Path, libraries: &Path) -> Result<(), String> {
    for devices in ["2", "8"] {
        for seed in 0..SEEDS {
            let tests = ["--test", "works", "--test", "processes"];
            run(&mut on(target, libraries, devices, seed, &tests))?;
        }
    }
    Ok(())
}

/// Returns what runs tests of the folder on so many GPUs, in one order.
fn on(target: &Path, libraries: &Path, devices: &str, seed: u32, tests: &[&str]) -> Command {
    println!("CUDA in software: {devices} GPUs, seed {seed}");
    let mut test = machine(cargo(target), libraries, devices);
    test.args(["test", "--locked", "-p", "cuda-in-software"]);
    test.args(tests).env(SEED, seed.to_string());
    test
}

/// Runs the tests of burn-dist-gpu that want a driver, NCCL and two GPUs, and one that wants a call to fail.
fn gpu(libraries: &Path) -> Result<(), String> {
    const FAILS: &str = "a_call_that_fails_is_named_to_all";
    let test = |named: &str, rest: &[&str]| {
        let mut test = machine(workspace::cargo(), libraries, "2");
        test.args(["test", "-p", "burn-dist-gpu", "--features", "cuda", "--lib"]);
        test.args([named, "--", "--ignored"]).args(rest);
        noted(&mut test, libraries, "gpu");
        test
    };
    run(&mut test("real", &["--skip", FAILS]))?;
    // The status is `ncclInternalError`. No other test makes the call that is to fail.
    run(test(FAILS, &[]).env("CUDA_IN_SOFTWARE_FAIL", "ncclAllGather:2:3"))
}

/// The packages that have tests on Burn 0.21's CUDA backend: built together, so that each dependency is built once.
const ON_021: &[&str] = &[
    "test",
    "-p",
    "promises-021",
    "-p",
    "burn-dist-engine-021",
    "-p",
    "burn-dist-cubecl-021",
    "--features",
    "promises-021/cuda,burn-dist-engine-021/cuda,burn-dist-cubecl-021/cuda",
];

/// Returns what runs ignored tests of these targets of Burn 0.21's, on so many GPUs.
fn on_021(libraries: &Path, devices: &str, part: &str, targets: &[&str]) -> Command {
    let mut test = machine(workspace::cargo(), libraries, devices);
    test.args(ON_021).args(targets).args(["--", "--ignored"]);
    noted(&mut test, libraries, part);
    unchecked(&mut test, "unwritten");
    test
}

/// The size of the large products of float8's tests, and one that is done here within minutes.
const LARGE_PRODUCTS: (&str, &str) = ("FLOAT8_LARGE_PRODUCTS", "512x1024x1024");

/// Runs the tests of float8's kernels on Burn 0.21's CubeCL, and of products by cuBLASLt on a GPU that has them.
fn float8(libraries: &Path) -> Result<(), String> {
    let of_cublaslt = "engines_compute_the_reference::cublaslt";
    for (capability, tests) in [
        ("7.0", vec!["--skip", of_cublaslt]),
        ("8.9", vec![of_cublaslt]),
    ] {
        let mut test = on_021(libraries, "1", "float8", &["--test", "cuda_float8"]);
        let (variable, size) = LARGE_PRODUCTS;
        if env::var_os(variable).is_none() {
            test.env(variable, size);
        }
        run(test.args(tests).env(CAPABILITY, capability))?;
    }
    Ok(())
}

/// Parts of the names of the tests in which each rank has a GPU.
const SEVERAL: &[&str] = &["gpus", "with_a_gpu_each"];

/// Runs the tests of `Dist<Cuda>` on Burn 0.21, whose CubeCL hands CUDA's compiler texts; with `seeds` those between
/// GPUs, in many orders.
fn burn(libraries: &Path, arguments: &[String]) -> Result<(), String> {
    const OLD: &str = "a_gpu_that_is_too_old_is_refused";
    let test = || on_021(libraries, "8", "burn", &["--test", "cuda"]);
    if arguments == ["seeds"] {
        for seed in 0..SEEDS {
            println!("CUDA in software: promises of 2, 4 and 8 GPUs, seed {seed}");
            run(test().args(SEVERAL).env(SEED, seed.to_string()))?;
        }
        return Ok(());
    }
    if !arguments.is_empty() {
        return run(test().args(["--skip", OLD]).args(arguments));
    }
    run(test().arg(OLD).env(CAPABILITY, "6.1"))?;
    run(test().args(["--skip", OLD]))
}

/// Runs collectives between 2 and 8 GPUs, in one process and in several, by each transport; with `seeds` in many orders.
fn conformance(libraries: &Path, arguments: &[String]) -> Result<(), String> {
    let test = || on_021(libraries, "8", "conformance", &["--lib"]);
    if arguments != ["seeds"] {
        return run(test().arg("gpus::cuda").args(arguments));
    }
    for seed in 0..SEEDS {
        println!("CUDA in software: collectives of 2 and 8 GPUs, seed {seed}");
        run(test().arg("gpus::cuda").env(SEED, seed.to_string()))?;
    }
    Ok(())
}

/// Runs CubeCL 0.10's own tests of a runtime: those that want another machine on one of their own.
fn cubecl(libraries: &Path, arguments: &[String]) -> Result<(), String> {
    let test = || {
        let mut test = machine(workspace::cargo(), libraries, "2");
        test.current_dir(workspace::root().join("dev/cuda-in-software/cubecl"))
            .env(
                "CARGO_TARGET_DIR",
                workspace::target().join("cubecl-in-software"),
            )
            .args(["test", "--locked", "--test", "runtime", "--"]);
        noted(&mut test, libraries, "cubecl");
        unchecked(&mut test, "unwritten");
        test
    };
    if !arguments.is_empty() {
        return run(test().args(arguments));
    }
    let apart = CUBECL_APART.iter();
    run(test().args(apart.flat_map(|(name, ..)| ["--skip", name])))?;
    for (name, variable, value) in CUBECL_APART {
        run(test().arg(name).env(variable, value))?;
    }
    Ok(())
}

/// Parts of the names of CubeCL's tests, and what is different on the machine that they pass on, with the reasons in the
/// folder's README.
const CUBECL_APART: &[(&str, &str, &str)] = &[
    ("test_to_client", UNCHECKED, "unwritten,order"),
    (
        "reinterpret_slice_f16::shared_memory::write_from_i8x4",
        SEED,
        "1",
    ),
    ("tensormap", CAPABILITY, "9.0"),
];

/// The functions that are called, by library.
const CALLED: &str = include_str!("../../dev/cuda-in-software/tests/called.txt");

/// Prints which functions the tests of burn-dist, of Burn's backend and of CubeCL have called since the build folder is
/// there, of all that they name.
fn called(libraries: &Path) -> Result<(), String> {
    let folder = notes(libraries);
    let mut found = BTreeSet::new();
    for part in PARTS {
        let part = folder.join(part);
        let files = fs::read_dir(&part).map_err(|error| {
            format!(
                "{}: {error}; run `cargo xtask cuda` with its name first",
                part.display()
            )
        })?;
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        found.extend(names);
    }
    let named = CALLED.lines().filter_map(|line| line.strip_prefix("    "));
    let named: Vec<&str> = named.filter(|name| !name.starts_with('#')).collect();
    let not = named.iter().filter(|name| !found.contains(**name));
    let not: Vec<&str> = not.copied().collect();
    let share = 1.0 - not.len() as f64 / named.len() as f64;
    println!(
        "{} of {} functions called: {share:.3}",
        named.len() - not.len(),
        named.len()
    );
    println!("not called: {}", not.join(", "));
    Ok(())
}

/// The commands whose calls are noted, each in a folder of its own.
const PARTS: &[&str] = &["gpu", "float8", "conformance", "burn", "cubecl"];

/// Where it is noted which functions were called.
fn notes(libraries: &Path) -> PathBuf {
    libraries.with_file_name("called")
}

/// Has it noted which functions are called.
fn noted(program: &mut Command, libraries: &Path, part: &str) {
    program.env("CUDA_IN_SOFTWARE_CALLED", notes(libraries).join(part));
}

/// The variable that says what a GPU can do.
const CAPABILITY: &str = "CUDA_IN_SOFTWARE_CAPABILITY";

/// Leaves checks out, unless the caller says which: of what CubeCL 0.10 does itself, see the folder's README.
fn unchecked<'a>(program: &'a mut Command, checks: &str) -> &'a mut Command {
    match env::var_os(UNCHECKED) {
        Some(_) => program,
        None => program.env(UNCHECKED, checks),
    }
}

/// Returns a Cargo whose programs find the libraries, and so many GPUs.
fn machine(mut cargo: Command, libraries: &Path, devices: &str) -> Command {
    // CubeCL looks for headers there; the compiler has its own.
    cargo
        .args(["--config", &workspace::cuda_path_of_programs(libraries)])
        .env("LD_LIBRARY_PATH", libraries)
        .env("CUDA_IN_SOFTWARE_DEVICES", devices);
    cargo
}
