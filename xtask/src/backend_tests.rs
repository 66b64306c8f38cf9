//! Burn's own tests of backends, from a checkout of Burn, with a mesh as the default device: as many pass as on plain
//! Flex. Nothing of them is kept here: they are copied into a workspace of their own that patches in the carrier, but for
//! what this release of Burn calls otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace;

/// The programs of tests, each with the type of its floats.
const PROGRAMS: [(&str, &str, &str); 4] = [
    ("tensor", "f32", "common/tensor.rs"),
    ("autodiff", "f32", "common/autodiff.rs"),
    ("tensor_f16", "burn_tensor::f16", "tensor/float/mod.rs"),
    ("autodiff_f16", "burn_tensor::f16", "common/autodiff.rs"),
];

/// The devices that tests run on: a name, and the environment of Burn's default device and of burn-dist's.
const DEVICES: [(&str, &[(&str, &str)]); 9] = [
    ("flex", &[("BURN_DEVICE", "flex")]),
    ("1 rank", &[MESH, ("BURN_DIST_MESH", "fsdp=1")]),
    ("2 ranks", &[MESH, ("BURN_DIST_MESH", "fsdp=2")]),
    ("3 ranks", &[MESH, ("BURN_DIST_MESH", "tp=3")]),
    ("4 ranks", &[MESH, ("BURN_DIST_MESH", "fsdp=2,tp=2")]),
    (
        "1 rank, fuzzed",
        &[MESH, ("BURN_DIST_MESH", "fsdp=1"), (FUZZ, "1")],
    ),
    (
        "2 ranks, fuzzed",
        &[MESH, ("BURN_DIST_MESH", "fsdp=2"), (FUZZ, "2")],
    ),
    (
        "3 ranks, fuzzed",
        &[MESH, ("BURN_DIST_MESH", "tp=3"), (FUZZ, "3")],
    ),
    (
        "4 ranks, fuzzed",
        &[MESH, ("BURN_DIST_MESH", "fsdp=2,tp=2"), (FUZZ, "4")],
    ),
];
/// The carrier has the name of this backend.
const MESH: (&str, &str) = ("BURN_DEVICE", "ndarray");
const FUZZ: &str = "BURN_DIST_FUZZ_LAYOUTS";

/// Modules whose functions Burn 0.22.1 calls otherwise than 0.22.0-pre.2, whose tests these are: options in place of
/// arguments. They are left out, by the file that names them.
const LEFT_OUT: [(&str, &[&str]); 2] = [
    (
        "autodiff/mod.rs",
        &[
            "avgpool1d",
            "avgpool2d",
            "maxpool1d",
            "maxpool2d",
            "nearest_interpolate",
        ],
    ),
    (
        "tensor/float/module/mod.rs",
        &[
            "avgpool1d",
            "avgpool2d",
            "bicubic_interpolate",
            "bilinear_interpolate",
            "lanczos3_interpolate",
            "maxpool1d",
            "maxpool2d",
            "nearest_interpolate",
        ],
    ),
];

/// Fields of data that are functions in 0.22.1: files, and the texts before and after.
const RENAMED: [(&str, &str, &str); 7] = [
    (
        "tensor/bool/ops/init.rs",
        "(data.dtype, ",
        "(data.dtype(), ",
    ),
    (
        "tensor/float/module/adaptive_avgpool3d.rs",
        "output_data.shape,",
        "output_data.shape().clone(),",
    ),
    (
        "tensor/float/quantization/ops/extended/mask.rs",
        ".dtype,",
        ".dtype(),",
    ),
    (
        "tensor/float/quantization/ops/matmul.rs",
        "output.dtype.",
        "output.dtype().",
    ),
    (
        "tensor/float/quantization/ops/quantize.rs",
        "data.dtype ",
        "data.dtype() ",
    ),
    (
        "tensor/float/quantization/scheme.rs",
        "to_data().dtype,",
        "to_data().dtype(),",
    ),
    (
        "tensor/float/quantization/ops/quantize.rs",
        "data.shape.",
        "data.shape().",
    ),
];

/// The outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Ignored,
    /// The program ended before there was one.
    Lost,
}

/// Runs the tests of a checkout of Burn: `[PATH, PROGRAMS...]`, all programs if none is named.
///
/// # Errors
/// The tests cannot be built, or one passes on Flex and not on a mesh.
pub(crate) fn backend_tests(arguments: &[String]) -> Result<(), String> {
    let (path, names) = arguments
        .split_first()
        .ok_or("which checkout of Burn? cargo xtask backend-tests PATH [PROGRAMS]")?;
    let tests = Path::new(path).join("crates/burn-backend-tests");
    let tests = tests
        .canonicalize()
        .map_err(|error| format!("{}: {error}", tests.display()))?;
    let programs: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(name, ..)| names.is_empty() || names.iter().any(|wanted| wanted == name))
        .collect();
    if programs.is_empty() {
        let known = PROGRAMS.map(|(name, ..)| name).join(", ");
        return Err(format!(
            "no program of tests is named {names:?}; there are {known}"
        ));
    }
    let folder = workspace::target().join("backend-tests");
    write_package(&folder, &tests)?;
    let mut worse = 0;
    for (name, ..) in programs {
        let program = build(&folder, name)?;
        let list = list(&program)?;
        let mut of_flex = BTreeMap::new();
        for (device, environment) in DEVICES {
            let outcomes = outcomes(
                &program,
                environment,
                &list,
                &folder.join(format!("{name}, {device}.txt")),
            )?;
            let count = |of: Outcome| outcomes.values().filter(|outcome| **outcome == of).count();
            let (passed, failed, lost) = (
                count(Outcome::Passed),
                count(Outcome::Failed),
                count(Outcome::Lost),
            );
            println!(
                "{name:<13} {device:<16} {passed:>5} passed {failed:>4} failed {lost:>4} lost"
            );
            if of_flex.is_empty() {
                of_flex = outcomes;
                continue;
            }
            for (test, outcome) in &outcomes {
                if of_flex[test] != *outcome {
                    println!("    {test}: {outcome:?}, and on Flex {:?}", of_flex[test]);
                    worse += usize::from(of_flex[test] == Outcome::Passed);
                }
            }
        }
    }
    match worse {
        0 => Ok(()),
        _ => Err(format!("{worse} tests pass on Flex and not on a mesh")),
    }
}

/// Writes a package whose tests are those of a checkout, with a mesh behind the name that Burn's dispatch knows.
fn write_package(folder: &Path, tests: &Path) -> Result<(), String> {
    let root = workspace::root();
    let of_root = fs::read_to_string(root.join("Cargo.toml")).map_err(|error| error.to_string())?;
    // Compiled as this workspace is, so that what both need is compiled once.
    let profile = of_root
        .split_once("[profile.dev]")
        .map_or("", |(_, rest)| rest);
    let profile = profile
        .split("[profile.release]")
        .next()
        .unwrap_or_default();
    let burn = of_root
        .lines()
        .find_map(|line| line.strip_prefix("burn-backend = { version = \""))
        .and_then(|rest| rest.split('"').next())
        .ok_or("the workspace names no version of burn-backend")?;
    let targets: String = PROGRAMS
        .iter()
        .map(|(name, ..)| format!("[[test]]\nname = \"{name}\"\npath = \"{name}.rs\"\n\n"))
        .collect();
    let manifest = format!(
        r#"[package]
name = "burn-backend-tests"
version = "0.0.0"
edition = "2024"
publish = false
autotests = false

[lib]
proc-macro = true
path = "{lib}"

[features]
# What tests ask of plain Flex.
default = ["std", "flex", "quantization"]
std = []
flex = []
quantization = []

[dependencies]
proc-macro2 = "1"
quote = "1"
syn = {{ version = "2", features = ["full"] }}

# What the macro does not need is not compiled for it.
[dev-dependencies]
burn-tensor = {{ path = "names", package = "burn-tensor-names" }}
burn-backend = {{ version = "{burn}", default-features = false, features = ["std"] }}
burn-autodiff = {{ version = "{burn}", default-features = false, features = ["std", "export_tests"] }}
burn-dist = {{ path = "{root}/burn-dist" }}
num-traits = "0.2"
serial_test = "3"
rand = "0.10"
ctor = "0.10.1"

{targets}[patch.crates-io]
burn-ndarray = {{ path = "{root}/carriers/burn-ndarray" }}

[workspace]

[profile.dev]{profile}"#,
        lib = tests.join("src/lib.rs").display(),
        root = root.display(),
    );
    let inner = folder.join("names");
    fs::create_dir_all(&inner).map_err(|error| format!("{}: {error}", inner.display()))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        // What has not changed is not compiled again.
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write("Cargo.toml", &manifest)?;
    write("names/Cargo.toml", &names(burn))?;
    write("names/lib.rs", NAMES)?;
    write("device.rs", DEVICE)?;
    for (name, float, modules) in PROGRAMS {
        write(
            &format!("{name}.rs"),
            &program(float, &Path::new("tests").join(modules)),
        )?;
    }
    let sources = tests.join("tests");
    for path in sources_of(&sources)? {
        let text = fs::read_to_string(sources.join(&path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let to = Path::new("tests").join(&path);
        let inner = folder.join(&to);
        let inner = inner.parent().unwrap_or(folder);
        fs::create_dir_all(inner).map_err(|error| format!("{}: {error}", inner.display()))?;
        write(&to.to_string_lossy(), &of_this_line(&path, text))?;
    }
    // The versions that this workspace is built with.
    let lock = folder.join("Cargo.lock");
    if !lock.exists() {
        fs::copy(root.join("Cargo.lock"), &lock)
            .map_err(|error| format!("{}: {error}", lock.display()))?;
    }
    Ok(())
}

/// Returns the sources in a folder and those in it, relative to it.
fn sources_of(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let entries = fs::read_dir(folder.join(&inner));
        for entry in entries.map_err(|error| format!("{}: {error}", inner.display()))? {
            let entry = entry.map_err(|error| error.to_string())?;
            let path = inner.join(entry.file_name());
            match entry.path().is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|it| it == "rs") => found.push(path),
                false => {}
            }
        }
    }
    Ok(found)
}

/// Returns a file of tests as this line of Burn takes it.
fn of_this_line(path: &Path, text: String) -> String {
    let left_out = LEFT_OUT.iter().filter(|(file, _)| path == Path::new(file));
    let text = left_out
        .flat_map(|(_, modules)| *modules)
        .fold(text, |text, module| {
            text.replace(&format!("mod {module};\n"), "")
        });
    let renamed = RENAMED.iter().filter(|(file, ..)| path == Path::new(file));
    renamed.fold(text, |text, (_, from, to)| text.replace(from, to))
}

/// Returns the manifest of a package with the names of tensors: their version, and what was part of their crate until
/// it became crates of its own.
fn names(burn: &str) -> String {
    format!(
        r#"[package]
name = "burn-tensor-names"
version = "0.0.0"
edition = "2024"
publish = false

[lib]
name = "burn_tensor"
path = "lib.rs"

[dependencies]
tensor = {{ package = "burn-tensor", version = "{burn}", default-features = false, features = ["std", "autodiff", "flex", "ndarray"] }}
burn-linalg = {{ version = "{burn}", default-features = false, features = ["std", "flex", "ndarray"] }}
burn-signal = {{ version = "{burn}", default-features = false, features = ["std", "autodiff", "flex"] }}
"#
    )
}

const NAMES: &str =
    "pub use burn_linalg as linalg;\npub use burn_signal as signal;\npub use tensor::*;\n";

/// Returns a program of tests: their types, and their modules.
fn program(float: &str, modules: &Path) -> String {
    format!(
        r#"#![recursion_limit = "256"]
#![allow(clippy::all, unused)]

extern crate alloc;

pub type FloatElem = {float};
pub type IntElem = i32;

#[path = "device.rs"]
mod device;
pub use device::*;

#[path = "{}"]
mod tests;
"#,
        modules.display()
    )
}

/// The types of tensors that tests share; and the engine, which a mesh brings into the program, and the types of the
/// default device before any test.
const DEVICE: &str = r#"use burn_tensor::{Device, DeviceConfig, Element};

use super::{FloatElem, IntElem};

#[ctor::ctor(unsafe)]
fn configure() {
    if std::env::var_os("BURN_DIST_MESH").is_some() {
        let mesh = burn_dist::DeviceMesh::builder().axis("dp", 1).build();
        std::mem::forget(mesh.expect("a mesh of one rank"));
    }
    let types = DeviceConfig::default()
        .float_dtype(<FloatElem as Element>::dtype())
        .int_dtype(<IntElem as Element>::dtype());
    Device::default().configure(types).expect("no test has used the device");
}

pub mod prelude {
    pub use burn_tensor::Tensor;

    pub type TestTensor<const D: usize> = Tensor<D>;
    pub type TestTensorInt<const D: usize> = Tensor<D, burn_tensor::Int>;
    pub type TestTensorBool<const D: usize> = Tensor<D, burn_tensor::Bool>;
}

pub use prelude::*;
"#;

/// Compiles a program of tests and returns where it is.
fn build(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", workspace::target())
        .args([
            "test",
            "--no-run",
            "--message-format",
            "json-render-diagnostics",
            "--test",
            name,
        ])
        .stderr(Stdio::inherit());
    let output = cargo
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name} cannot be built"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let executable = text.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["target"]["name"] == *name;
        is_test.then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    executable.ok_or_else(|| format!("Cargo names no program for {name}"))
}

/// Returns the names of a program's tests.
fn list(program: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new(program);
    let output = command
        .env("BURN_DEVICE", "flex")
        .args(["--list", "--format", "terse"])
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_string).collect())
}

/// Runs all tests, one after the other, and returns what became of each; all that they print goes to a file. Tests that
/// were to come after one that has ended the program run in another one.
fn outcomes(
    program: &Path,
    environment: &[(&str, &str)],
    tests: &[String],
    file: &Path,
) -> Result<BTreeMap<String, Outcome>, String> {
    let mut outcomes = BTreeMap::new();
    let mut log = String::new();
    while outcomes.len() < tests.len() {
        let rest: Vec<&String> = tests
            .iter()
            .filter(|test| !outcomes.contains_key(*test))
            .collect();
        let output = Command::new(program)
            .envs(environment.iter().copied())
            .args(["--exact", "--test-threads", "1"])
            .args(&rest)
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        log += &text;
        log += &String::from_utf8_lossy(&output.stderr);
        let before = outcomes.len();
        outcomes.extend(read(&text));
        // The first one that says nothing has ended the program.
        if let Some(lost) = rest.iter().find(|test| !outcomes.contains_key(**test)) {
            outcomes.insert((*lost).clone(), Outcome::Lost);
        }
        assert!(outcomes.len() > before, "each program has an outcome more");
    }
    fs::write(file, log).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(outcomes)
}

/// Reads `test NAME ... OUTCOME` of each test that a program has run.
fn read(text: &str) -> impl Iterator<Item = (String, Outcome)> {
    text.lines().filter_map(|line| {
        let (test, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
        // `should panic` and reasons follow a name.
        let test = test.split(' ').next()?;
        let outcome = match outcome.split([',', ' ']).next()? {
            "ok" => Outcome::Passed,
            "FAILED" => Outcome::Failed,
            "ignored" => Outcome::Ignored,
            _ => return None,
        };
        Some((test.to_string(), outcome))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_tests_is_read() {
        let text = "\nrunning 4 tests\ntest a::b ... ok\ntest a::c - should panic ... ok\ntest d ... FAILED\n\
                    test e ... ignored, too slow\n\nfailures:\n";
        let found: Vec<(String, Outcome)> = read(text).collect();
        let expected = [
            ("a::b", Outcome::Passed),
            ("a::c", Outcome::Passed),
            ("d", Outcome::Failed),
            ("e", Outcome::Ignored),
        ];
        assert_eq!(
            found,
            expected.map(|(name, outcome)| (name.to_string(), outcome))
        );
    }
}
