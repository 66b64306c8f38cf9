//! Where everything is: packages of the workspace, and the files of their programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::text::{is_for_tests, is_word, plain, without_text};

pub(crate) fn workspace() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("the workspace is above the crate")
        .to_path_buf()
}

/// The folders of all packages with sources of their own, as the workspace lists them. A package whose sources are
/// those of another one, compiled for another line of Burn, stands for that one.
pub(crate) fn packages() -> Vec<PathBuf> {
    let manifest = read(&workspace().join("Cargo.toml"));
    let members = manifest
        .split_once("members = [")
        .and_then(|(_, list)| list.split_once(']'));
    let (members, _) = members.expect("the workspace has members");
    let mut packages = Vec::new();
    for name in members.split('"').skip(1).step_by(2) {
        let mut package = workspace().join(name);
        let src = package.join("src");
        let manifest = package.join("Cargo.toml");
        assert!(manifest.is_file(), "{} has moved", package.display());
        if let Ok(target) = src.read_link() {
            let sources = target.parent().and_then(Path::file_name);
            package =
                workspace().join(sources.expect("the sources of a package of this workspace"));
        }
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    packages
}

/// All packages of the workspace, as Cargo describes them.
pub(crate) fn described() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(workspace()).args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    let output = cargo.output().expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON of cargo metadata");
    let packages = metadata["packages"].as_array();
    packages.expect("a list of packages").clone()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files at `place` that are part of the program, without comments, texts and tests.
pub(crate) fn sources(place: &Path) -> Vec<(PathBuf, String)> {
    let files = program_files(place).into_iter();
    files
        .map(|path| (path.clone(), plain(&read(&path))))
        .collect()
}

/// Returns the files at `place`, but for those of modules that are for tests only.
pub(crate) fn program_files(place: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if place.is_file() {
        files.push(place.to_path_buf());
    } else {
        rust_files(place, &mut files);
    }
    files.retain(|path| {
        !tests()
            .iter()
            .any(|test| path.starts_with(test) || *path == test.with_extension("rs"))
    });
    files
}

/// Folders of all modules that are for tests only.
fn tests() -> &'static [PathBuf] {
    static TESTS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    TESTS.get_or_init(|| {
        let mut files = Vec::new();
        for package in packages() {
            rust_files(&package.join("src"), &mut files);
        }
        files.iter().flat_map(|path| test_modules(path)).collect()
    })
}

/// Folders of the modules that `path` declares for tests only; their files lie in them or beside them.
fn test_modules(path: &Path) -> Vec<PathBuf> {
    let inside = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => path.with_file_name(""),
        _ => path.with_extension(""),
    };
    let code = without_text(&read(path));
    code.split("#[cfg(")
        .skip(1)
        .filter_map(|item| item.split_once(")]"))
        .filter(|(condition, _)| is_for_tests(condition))
        .filter_map(|(_, item)| {
            let item = item.trim_start();
            ["pub(crate) ", "pub(super) ", "pub ", ""]
                .iter()
                .find_map(|before| item.strip_prefix(before)?.strip_prefix("mod "))
        })
        .filter_map(|item| item.split_once(';').map(|(name, _)| name.trim()))
        .filter(|name| name.chars().all(is_word))
        .map(|name| inside.join(name))
        .collect()
}

/// Adds the files of a folder to `files`; none if it is the `src` of a package that has test programs alone.
pub(crate) fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    if folder.ends_with("src") && !folder.exists() {
        return;
    }
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    for path in paths {
        // A linked file is that of another package.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                rust_files(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
