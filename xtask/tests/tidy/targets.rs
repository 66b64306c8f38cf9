//! Names of libraries, programs and tests.

use std::collections::BTreeSet;

use crate::workspace::{described, read, workspace};

/// A library that is named like a dependency because it stands for it.
const STANDS_FOR: &str = "burn_ndarray";

/// `cargo clean --workspace` finds what it removes by these names: a dependency of the same one goes as well, and all that
/// is made of it is compiled again by everyone who keeps dependencies, as CI does.
#[test]
fn nothing_is_named_like_a_dependency() {
    let lock = read(&workspace().join("Cargo.lock"));
    let dependencies: BTreeSet<String> = lock
        .split("[[package]]")
        .filter(|package| package.contains("source = "))
        .filter_map(|package| package.split('"').nth(1))
        .map(|name| name.replace('-', "_"))
        .collect();
    assert!(dependencies.contains("burn_tensor"), "{dependencies:?}");
    let mut wrong = Vec::new();
    for package in described() {
        for target in package["targets"].as_array().expect("a list of targets") {
            let name = target["name"].as_str().expect("a name").replace('-', "_");
            if name != STANDS_FOR && name != "build_script_build" && dependencies.contains(&name) {
                wrong.push(format!(
                    "{}: `{name}` is the name of a dependency",
                    package["name"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
