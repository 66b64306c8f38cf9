//! Names of libraries, programs and tests.

use std::collections::BTreeSet;

use crate::lock::packages;
use crate::workspace::{described, read, workspace};

/// A library that is named like a dependency because it stands for it.
const STANDS_FOR: &str = "burn_ndarray";

/// `cargo clean --workspace` finds what it removes by these names: a dependency of the same one goes as well, and all
/// that is made of it is compiled again by everyone who keeps dependencies, as CI does.
#[test]
fn nothing_is_named_like_a_dependency() {
    let lock = read(&workspace().join("Cargo.lock"));
    let packages = packages(&lock).into_iter();
    let dependencies = packages.filter(|package| !package.is_of_workspace);
    let dependencies: BTreeSet<String> = dependencies
        .map(|package| package.name.replace('-', "_"))
        .collect();
    assert!(dependencies.contains("burn_tensor"), "{dependencies:?}");
    let mut wrong = Vec::new();
    for package in described() {
        for target in package["targets"].as_array().expect("a list of targets") {
            let name = target["name"].as_str().expect("a name").replace('-', "_");
            if name != STANDS_FOR && dependencies.contains(&name) {
                wrong.push(format!(
                    "{}: `{name}` is the name of a dependency",
                    package["name"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
