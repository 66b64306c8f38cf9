//! A program without the patch of burn-ndarray: it builds with burn-dist, its trainer and burn-dist-lm, and the
//! compiler says what to add where it asks a mesh for its device.

use std::fs;
use std::process::Output;

use crate::workspace;

const MANIFEST: &str = r#"[package]
name = "unpatched"
version = "0.0.0"
edition = "2024"

[dependencies]
burn-dist = { path = "BURN-DIST", features = ["train"] }
# The trainer and the programs over it say when they run that the patch is missing.
burn-dist-lm = { path = "BURN-DIST-LM" }

[workspace]
"#;

/// A mesh, whose device nobody asks for.
const WITHOUT_DEVICE: &str = r#"fn main() {
    let mesh = burn_dist::DeviceMesh::parse("fsdp=2");
    println!("{}", mesh.expect("a mesh"));
}
"#;

const WITH_DEVICE: &str = r#"fn main() {
    let mesh = burn_dist::DeviceMesh::parse("fsdp=2").expect("a mesh");
    println!("{:?}", mesh.device());
}
"#;

/// Lines of the compiler's error: what is missing, and what to add.
const ERROR: [&str; 4] = [
    "error[E0277]: Burn does not know the devices of meshes yet: the patch of `burn-ndarray` is missing",
    "  = note: add these lines to the Cargo.toml of the workspace, with the path or the repository from which it has burn-dist:",
    "  = note: [patch.crates-io]",
    "  = note: burn-ndarray = { path = \"../burn-dist/carriers/burn-ndarray\" }",
];

/// Checks both programs, in a package outside the workspace, with the versions of crates that it has.
///
/// # Errors
/// The one without a device does not build, the other one builds, or its error is another one.
pub(crate) fn unpatched() -> Result<(), String> {
    let folder = workspace::target().join("unpatched");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let programs = folder.join("src/bin");
    fs::create_dir_all(&programs).map_err(|error| format!("{}: {error}", programs.display()))?;
    // As TOML writes a text: with every backslash and quotation mark escaped, as Rust does.
    let path = |package| {
        format!(
            "{:?}",
            workspace::root().join(package).display().to_string()
        )
    };
    let manifest = MANIFEST.replace("\"BURN-DIST\"", &path("burn-dist"));
    let manifest = manifest.replace("\"BURN-DIST-LM\"", &path("burn-dist-lm"));
    write("Cargo.toml", &manifest)?;
    write("src/bin/without_device.rs", WITHOUT_DEVICE)?;
    write("src/bin/with_device.rs", WITH_DEVICE)?;
    let lock = workspace::root().join("Cargo.lock");
    let lock = fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    write("Cargo.lock", &lock)?;
    let check = |program: &str| -> Result<Output, String> {
        workspace::cargo()
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", workspace::target())
            .args(["check", "--quiet", "--color", "never", "--bin", program])
            .output()
            .map_err(|error| format!("cargo cannot be run: {error}"))
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let without = check("without_device")?;
    if !without.status.success() {
        return Err(format!(
            "without a device it does not build:\n{}",
            said(&without)
        ));
    }
    let with = check("with_device")?;
    let text = said(&with);
    let missing: Vec<&str> = ERROR
        .into_iter()
        .filter(|line| {
            !text
                .lines()
                .any(|found| found.trim_start() == line.trim_start())
        })
        .collect();
    match with.status.success() {
        true => Err("with a device it builds, and the patch is not there".into()),
        false if missing.is_empty() => Ok(()),
        false => Err(format!(
            "the compiler does not say\n{}\nbut\n{text}",
            missing.join("\n")
        )),
    }
}
