//! The steps of what must hold before a change lands: cheapest first, each by its name.

use std::env;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::features;
use crate::unpatched;
use crate::workspace::{self, run};
use crate::{cuda, kernels};

/// A step of the check.
pub(crate) struct Step {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Its purpose, for people.
    pub(crate) what: &'static str,
    /// Runs while `tests` does, which leaves a core idle for most of its time. Such a step builds no program that a test
    /// of another one starts.
    is_beside: bool,
    run: fn() -> Result<(), String>,
}

/// The step that others run beside.
const TESTS: &str = "tests";

/// The features that need packages of the system but no device: with them the whole workspace is linted, and processes
/// are tested.
const SEVERAL: &str = "burn-dist/mpi,burn-dist/cli,burn-dist-lm/mpi,burn-dist-lm/parquet,burn-dist-021/mpi,\
                       promises/mpi,conformance/mpi";

/// The packages for the line of Burn before the current one that have a library. Their libraries are named like those of
/// the current line, which alone is documented.
const BEFORE: [&str; 7] = [
    "burn-dist-021",
    "burn-dist-cubecl-021",
    "burn-dist-door-021",
    "burn-dist-engine-021",
    "burn-dist-ops-021",
    "promises-021",
    "swap-021",
];

/// The features that packages of the current line turn on in crates of this workspace.
const ALIKE: &str = "burn-dist-021/parquet,burn-dist-021/tokenizers,burn-dist-021/tcp,burn-dist-checkpoint/cli,\
                     burn-dist-kernels/random-regions,burn-dist-launch/cli";

/// All steps, in their order.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "the format of all sources",
        is_beside: false,
        run: || cargo(&["fmt", "--all", "--check"]),
    },
    Step {
        name: "tidy",
        what: "arrows between folders and crates, circles of modules, lengths of files",
        is_beside: false,
        run: || cargo(&["test", "--quiet", "-p", "xtask"]),
    },
    Step {
        name: "lints",
        what: "clippy, with every feature that builds here; warnings are errors",
        is_beside: false,
        run: lints,
    },
    Step {
        name: "features",
        what: "each optional feature of each published crate alone; features of Burn that others may turn on",
        is_beside: true,
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
        name: "patch",
        what: "a program without the patch of burn-ndarray: it builds, and the compiler says what to add",
        is_beside: true,
        run: unpatched::unpatched,
    },
    Step {
        name: "docs",
        what: "the documentation and its links",
        is_beside: true,
        run: docs,
    },
    Step {
        name: TESTS,
        what: "the tests that need nothing but Rust",
        is_beside: false,
        run: tests,
    },
    Step {
        name: "burn-021",
        what: "the tests on Burn 0.21",
        is_beside: false,
        run: burn_021,
    },
    Step {
        name: "processes",
        what: "tests of several processes and of launching; needs an MPI library and libclang",
        is_beside: false,
        run: processes,
    },
    Step {
        name: "tensorboard",
        what: "figures as TensorBoard reads them; needs Python with venv, and PyPI once",
        is_beside: true,
        run: tensorboard,
    },
    Step {
        name: "kernels",
        what: "kernels in CUDA, compiled and emulated; needs Python's pip, a C++ compiler, and PyPI once",
        is_beside: true,
        run: || kernels::kernels(&[]),
    },
    Step {
        name: "cuda",
        what: "CUDA in software, by its own tests; needs GCC 12 or later",
        is_beside: true,
        run: || cuda::cuda(&[]),
    },
    Step {
        name: "vulkan",
        what: "the backends for GPUs on a Vulkan device, Mesa's lavapipe for example",
        is_beside: true,
        run: vulkan,
    },
];

/// Runs the named steps, all of them if none is named, in the order of [`STEPS`], up to the first that fails. If `tests`
/// is one of them, those that may run beside it do so.
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
    let has_tests = names.is_empty() || names.iter().any(|name| name == TESTS);
    let (beside, alone): (Vec<&Step>, Vec<&Step>) =
        chosen.partition(|step| has_tests && step.is_beside);
    let start = Instant::now();
    let mut times = Vec::new();
    let mut failed = None;
    for step in alone {
        println!("== {}: {}", step.name, step.what);
        let others = (step.name == TESTS && !beside.is_empty()).then(|| Beside::start(&beside));
        let step_start = Instant::now();
        let mut outcome = (step.run)();
        times.push((step.name, step_start.elapsed()));
        if let Some(others) = others {
            let others_outcome = others.and_then(|others| others.end(outcome.is_ok()));
            outcome = outcome.and(others_outcome);
            times.push(("those beside", step_start.elapsed()));
        }
        if let Err(error) = outcome {
            failed = Some(format!("step `{}` failed: {error}", step.name));
            break;
        }
    }
    println!("{}", table(&times, start.elapsed()));
    failed.map_or(Ok(()), Err)
}

/// Steps that run in a process of their own. What it prints goes to a file, and is printed when it has ended.
struct Beside {
    process: Child,
    output: PathBuf,
}

impl Beside {
    fn start(steps: &[&Step]) -> Result<Self, String> {
        let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
        let output = workspace::target().join("check-beside.log");
        println!(
            "   beside it: {}; their output comes after its own, and is in {}",
            names.join(", "),
            output.display()
        );
        let failed = |error: io::Error| format!("{}: {error}", output.display());
        fs::create_dir_all(workspace::target()).map_err(failed)?;
        let file = File::create(&output).map_err(failed)?;
        let errors = file.try_clone().map_err(failed)?;
        let program =
            env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
        let process = Command::new(program)
            .arg("check")
            .args(names)
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("this program cannot be run once more: {error}"))?;
        Ok(Self { process, output })
    }

    /// Waits for the steps, or ends them if what they run beside has failed, and prints what they have printed.
    fn end(mut self, waits: bool) -> Result<(), String> {
        let failed = |error: io::Error| format!("the steps beside it: {error}");
        if !waits {
            // What it has started ends by itself: compilers, and tests with limits of time.
            self.process.kill().map_err(failed)?;
        }
        let status = self.process.wait().map_err(failed)?;
        let printed = fs::read(&self.output).map_err(failed)?;
        println!("{}", String::from_utf8_lossy(&printed));
        match status.success() {
            true => Ok(()),
            false => Err(format!("the steps beside it ended with {status}")),
        }
    }
}

fn step(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// Returns a row for each step that ran, and one for all.
fn table(times: &[(&str, Duration)], all: Duration) -> String {
    let mut table = format!("{:<12} seconds\n", "step");
    for (name, time) in times {
        let _ = writeln!(table, "{name:<12} {:>7}", time.as_secs());
    }
    let _ = write!(table, "{:<12} {:>7}", "all", all.as_secs());
    table
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run(workspace::cargo().args(arguments))
}

/// Packs what is published as the registry takes it, without building it.
pub(crate) fn packages() -> Result<(), String> {
    // It says of each package that no address of a repository is in it, and which tests are not.
    cargo(&[
        "publish",
        "--workspace",
        "--dry-run",
        "--no-verify",
        "--allow-dirty",
        "--quiet",
    ])
}

/// Runs all tests with elementwise work as it is by default, in regions, but for those that ask for Flex's bits. Then
/// promises of training once more with Flex's own operations, which other backends have too; nothing is compiled for
/// that. One operation at a time has the bits of regions, which tests of both compare.
fn tests() -> Result<(), String> {
    cargo(&["test"])?;
    let mut promises = workspace::cargo();
    promises.args(["test", "--test", "promises", "--"]);
    promises.args(["experts::", "loops::", "sharding::"]);
    run(promises.env("BURN_DIST_REGIONS", "flex"))
}

/// Runs the tests that `cargo test` leaves out. With `unified` and [`ALIKE`], what both lines share has the features that
/// it has in `tests`, and is not compiled once more.
fn burn_021() -> Result<(), String> {
    let packages = BEFORE.iter().chain(&["lines", "minimal-021", "unified"]);
    let packages = packages.flat_map(|package| ["-p", package]);
    let test = ["test", "--features", ALIKE].into_iter();
    cargo(&test.chain(packages).collect::<Vec<_>>())
}

/// Lints with all features at once: what a feature leaves out is checked by the step `features`.
fn lints() -> Result<(), String> {
    // CUDA of Burn's current line is built with an LLVM of CubeCL's own: the step `features` checks what can be.
    let features = format!("{SEVERAL},promises-021/cuda,burn-dist-cubecl/wgpu");
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
    let others = BEFORE.iter().flat_map(|name| ["--exclude", name]);
    let doc = [
        "doc",
        "--workspace",
        "--no-deps",
        "--lib",
        "--features",
        "burn-dist/cli",
    ]
    .into_iter();
    // What is private is linked to for those who read the source.
    run(workspace::cargo()
        .env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links",
        )
        .args(doc.chain(others)))
}

/// Builds programs as a part of the workspace, as `tests` does: a package that is built alone has dependencies with other
/// features, which would be compiled once more. Alone is the transport over MPI, which is not made of Burn.
fn processes() -> Result<(), String> {
    cargo(&[
        "test",
        "-p",
        "burn-dist-comm",
        "--features",
        "mpi",
        "--lib",
        "transport::mpi",
    ])?;
    let programs = ["over_mpi", "processes", "launch", "listening"];
    let programs = programs.iter().flat_map(|program| ["--test", program]);
    let test = ["test", "--workspace", "--features", SEVERAL].into_iter();
    cargo(&test.chain(programs).collect::<Vec<_>>())
}

fn tensorboard() -> Result<(), String> {
    let folder = workspace::target().join("tensorboard");
    let venv = ["-m", "venv"];
    run(Command::new("python3").args(venv).arg(&folder))?;
    let install = [
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "tensorboard",
    ];
    run(std::process::Command::new(folder.join("bin/pip")).args(install))?;
    run(workspace::cargo()
        .env("TENSORBOARD_PYTHON", folder.join("bin/python"))
        .args(["test", "--workspace", "--lib"])
        .args(["--", "--ignored", "tensorboard_reads"]))
}

/// Tests kernels on Burn's current line, and programs on both lines: together, so that each dependency is built once.
/// And the unit tests of operations and engine on Burn 0.21, which `cargo test` leaves out.
fn vulkan() -> Result<(), String> {
    let packages = ["burn-dist-cubecl", "promises", "promises-021"];
    let features = packages.map(|package| format!("{package}/wgpu")).join(",");
    // With it planner and kernels have the features that they have in `tests`.
    let packages = packages
        .iter()
        .chain(&["burn-dist-engine-021", "burn-dist-ops-021", "unified"]);
    let packages = packages.flat_map(|package| ["-p", package]);
    let programs = ["on_wgpu", "wgpu_float8", "wgpu_regions"];
    let programs = programs.iter().flat_map(|program| ["--test", program]);
    let test = ["test", "--features", &features, "--lib"].into_iter();
    cargo(&test.chain(packages).chain(programs).collect::<Vec<_>>())
}
