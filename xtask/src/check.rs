//! What must hold before a change lands, as steps: cheapest first, each by its name.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::features;
use crate::kernels;
use crate::workspace::{self, run};

/// A step of the check.
pub(crate) struct Step {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// What it does, for people.
    pub(crate) what: &'static str,
    run: fn() -> Result<(), String>,
}

/// The features that need packages of the system but no device: with them the whole workspace is linted, and processes
/// are tested.
const SEVERAL: &str =
    "burn-dist/mpi,burn-dist/cli,burn-dist-021/mpi,promises-021/mpi,llama/mpi,llama/parquet";

/// All steps, in their order.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "the format of all sources",
        run: || cargo(&["fmt", "--all", "--check"]),
    },
    Step {
        name: "tidy",
        what: "arrows between folders and crates, circles of modules, lengths of files",
        run: || cargo(&["test", "--quiet", "-p", "xtask"]),
    },
    Step {
        name: "lints",
        what: "clippy, with every feature that builds here; warnings are errors",
        run: lints,
    },
    Step {
        name: "features",
        what: "each optional feature of each published crate alone; features of Burn that others may turn on",
        run: || {
            features::each_alone()?;
            cargo(&[
                "check",
                "--quiet",
                "-p",
                "features",
                "--features",
                "all",
                "--tests",
            ])
        },
    },
    Step {
        name: "docs",
        what: "the documentation and its links",
        run: docs,
    },
    Step {
        name: "tests",
        what: "the tests that need nothing but Rust",
        run: || cargo(&["test", "--workspace"]),
    },
    Step {
        name: "processes",
        what: "tests of several processes, of launching and of Parquet; needs an MPI library and libclang",
        run: processes,
    },
    Step {
        name: "tensorboard",
        what: "figures as TensorBoard reads them; needs Python with venv, and PyPI once",
        run: tensorboard,
    },
    Step {
        name: "kernels",
        what: "kernels in CUDA, compiled and emulated; needs Python's pip, a C++ compiler, and PyPI once",
        run: || kernels::kernels(&[]),
    },
    Step {
        name: "vulkan",
        what: "the backends for GPUs on a Vulkan device, Mesa's lavapipe for example",
        run: vulkan,
    },
];

/// Runs the named steps, all of them if none is named, in the order of [`STEPS`], up to the first that fails.
///
/// # Errors
/// A name is no step's, or a step fails.
pub(crate) fn check(names: &[String]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| step(name).is_none()) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!(
            "no step `{unknown}`; steps are {}",
            known.join(", ")
        ));
    }
    let chosen = STEPS
        .iter()
        .filter(|step| names.is_empty() || names.iter().any(|name| name == step.name));
    let mut times = Vec::new();
    let mut failed = None;
    for step in chosen {
        println!("== {}: {}", step.name, step.what);
        let start = Instant::now();
        let outcome = (step.run)();
        times.push((step.name, start.elapsed()));
        if let Err(error) = outcome {
            failed = Some(format!("step `{}` failed: {error}", step.name));
            break;
        }
    }
    println!("{}", table(&times));
    failed.map_or(Ok(()), Err)
}

fn step(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// Returns a row for each step that ran, and one for all.
fn table(times: &[(&str, Duration)]) -> String {
    let mut table = format!("{:<12} seconds\n", "step");
    for (name, time) in times {
        let _ = writeln!(table, "{name:<12} {:>7}", time.as_secs());
    }
    let all: Duration = times.iter().map(|(_, time)| *time).sum();
    let _ = write!(table, "{:<12} {:>7}", "all", all.as_secs());
    table
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run(workspace::cargo().args(arguments))
}

/// Lints with all features at once: what a feature leaves out is checked by the step `features`.
fn lints() -> Result<(), String> {
    let features = format!("{SEVERAL},promises-021/cuda");
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--features",
        &features,
    ];
    cargo(&[&clippy[..], &["--", "-D", "warnings"]].concat())
}

fn docs() -> Result<(), String> {
    // What is private is linked to for those who read the source.
    run(workspace::cargo()
        .env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links",
        )
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--lib",
            "--features",
            "burn-dist/cli",
        ]))
}

fn processes() -> Result<(), String> {
    // Of the libraries, those that have tests for these features; the step `tests` has the others.
    let libraries = [
        "burn-dist-checkpoint",
        "burn-dist-launch",
        "burn-dist-train",
    ];
    let features = "burn-dist-checkpoint/cli,burn-dist-launch/cli,burn-dist-launch/mpi,burn-dist-train/parquet";
    let packages = libraries.iter().flat_map(|library| ["-p", library]);
    let test = ["test", "--lib", "--features", features].into_iter();
    cargo(&test.chain(packages).collect::<Vec<_>>())?;
    cargo(&[
        "test",
        "--lib",
        "-p",
        "burn-dist-comm",
        "--features",
        "mpi",
        "transport::mpi",
    ])?;
    cargo(&[
        "test",
        "--lib",
        "-p",
        "conformance",
        "--features",
        "mpi",
        "over_mpi",
    ])?;
    let programs = ["mpi", "processes", "launch"];
    let programs = programs.iter().flat_map(|program| ["--test", program]);
    let test = ["test", "--workspace", "--features", SEVERAL].into_iter();
    cargo(&test.chain(programs).collect::<Vec<_>>())
}

fn tensorboard() -> Result<(), String> {
    let folder = workspace::target().join("tensorboard");
    let venv = ["-m", "venv"];
    run(std::process::Command::new("python3")
        .args(venv)
        .arg(&folder))?;
    let install = [
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "tensorboard",
    ];
    run(std::process::Command::new(folder.join("bin/pip")).args(install))?;
    run(workspace::cargo()
        .env("TENSORBOARD_PYTHON", folder.join("bin/python"))
        .args([
            "test",
            "--workspace",
            "--lib",
            "--",
            "--ignored",
            "tensorboard_reads",
        ]))
}

fn vulkan() -> Result<(), String> {
    let features = "promises-021/wgpu,burn-dist-kernels/wgpu";
    let test = [
        "-p",
        "promises-021",
        "-p",
        "burn-dist-kernels",
        "--features",
        features,
    ];
    let programs = ["--test", "wgpu", "--test", "wgpu_float8"];
    cargo(&[&["test"], &test[..], &programs].concat())
}
