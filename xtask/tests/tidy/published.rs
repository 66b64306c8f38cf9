//! What the registry and docs.rs show of each package that is published, and that others find its dependencies there.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::workspace::{described, read, workspace};

/// What an attribute of a library says so that docs.rs names the feature which an item needs.
const NAMES_FEATURES: &str = "#![cfg_attr(docsrs, feature(doc_cfg))]";
/// Texts that each package carries.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

fn published() -> Vec<Value> {
    // `publish = false` is an empty list of registries.
    let all = described().into_iter();
    all.filter(|package| package["publish"].is_null()).collect()
}

/// Returns what is missing in a package's metadata.
fn missing(package: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    let has = |key: &str| match &package[key] {
        Value::Array(list) => !list.is_empty(),
        value => value.as_str().is_some_and(|text| !text.trim().is_empty()),
    };
    let keys = [
        "description",
        "keywords",
        "categories",
        "license",
        "rust_version",
    ];
    missing.extend(
        keys.into_iter()
            .filter(|key| !has(key))
            .map(|key| format!("no {key}")),
    );
    let features = package["features"]
        .as_object()
        .is_some_and(|features| !features.is_empty());
    if features && !package["metadata"]["docs"]["rs"]["features"].is_array() {
        missing.push("no [package.metadata.docs.rs] features".into());
    }
    let dependencies = package["dependencies"]
        .as_array()
        .map_or(&[][..], |list| list);
    for dependency in dependencies {
        // What only tests need is left out of a package if it has no version.
        if dependency["req"] == "*" && dependency["kind"] != "dev" {
            missing.push(format!("no version of {}", dependency["name"]));
        }
    }
    missing
}

/// Returns what is missing in the folder of a package, whose features an attribute of its library names.
fn missing_files(folder: &Path, name: &str, has_features: bool) -> Vec<String> {
    let mut missing = Vec::new();
    for licence in LICENCES {
        let text = fs::read_to_string(folder.join(licence)).unwrap_or_default();
        if text.is_empty() || text != read(&workspace().join(licence)) {
            missing.push(format!("{licence} is not that of the workspace: link it"));
        }
    }
    let readme = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
    if !readme.starts_with(&format!("# {name}\n")) {
        missing.push(format!("no README.md that begins with `# {name}`"));
    }
    if has_features && !read(&folder.join("src/lib.rs")).contains(NAMES_FEATURES) {
        missing.push(format!("src/lib.rs without {NAMES_FEATURES}"));
    }
    missing
}

#[test]
fn packages_that_are_published_are_described() {
    let published = published();
    assert!(
        published.len() > 15,
        "{} packages are published",
        published.len()
    );
    let mut wrong = Vec::new();
    for package in &published {
        let name = package["name"].as_str().expect("a name");
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().expect("a folder");
        let has_features = package["features"]
            .as_object()
            .is_some_and(|features| !features.is_empty());
        let mut found = missing(package);
        found.extend(missing_files(folder, name, has_features));
        wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn what_a_package_lacks_is_named() {
    let package = serde_json::json!({
        "description": "a package", "keywords": [], "categories": ["science"], "license": null, "rust_version": "1.95",
        "features": { "extra": [] }, "metadata": null,
        "dependencies": [
            { "name": "without", "req": "*", "kind": null },
            { "name": "for-tests", "req": "*", "kind": "dev" },
            { "name": "with", "req": "^1", "kind": null },
        ],
    });
    assert_eq!(
        missing(&package),
        [
            "no keywords",
            "no license",
            "no [package.metadata.docs.rs] features",
            "no version of \"without\"",
        ]
    );
    let nothing = missing_files(Path::new("nowhere"), "a", false);
    assert_eq!(nothing.len(), 3, "{nothing:?}");
}
