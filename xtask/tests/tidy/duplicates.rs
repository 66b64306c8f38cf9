//! Crates that the workspace is built with in several versions: each costs time to build, and types that do not match.

use std::collections::BTreeMap;

use crate::falling::only_falls;
use crate::workspace::{read, workspace};

/// How many versions there are beyond the first of each crate. This number only falls.
const SUPERFLUOUS_VERSIONS: usize = 53;

#[test]
fn duplicate_versions_only_become_fewer() {
    let lock = read(&workspace().join("Cargo.lock"));
    let versions = versions(&lock);
    assert!(!versions.is_empty(), "nothing to check in Cargo.lock");
    let found = superfluous(&versions);
    let mut list = String::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        list += &format!("  {name} {}\n", versions.join(", "));
    }
    let wrong = only_falls("superfluous versions", found, SUPERFLUOUS_VERSIONS, &list);
    assert!(wrong.is_none(), "\n{}", wrong.unwrap_or_default());
}

#[test]
fn planted_duplicates_are_counted() {
    let lock = |name: &str, version: &str| {
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [\n \"a 1.0.0\",\n]\n\n"
        )
    };
    let once = format!(
        "version = 4\n\n{}{}",
        lock("a", "1.0.0"),
        lock("b", "1.0.0")
    );
    assert_eq!(superfluous(&versions(&once)), 0);
    let more = once + &lock("a", "2.0.0") + &lock("a", "3.0.0");
    assert_eq!(superfluous(&versions(&more)), 2);
}

/// Returns the versions of each crate that a lock file names.
fn versions(lock: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("no {key}in{package}"))
                .trim_matches('"')
        };
        versions
            .entry(value("name = "))
            .or_default()
            .push(value("version = "));
    }
    versions
}

fn superfluous(versions: &BTreeMap<&str, Vec<&str>>) -> usize {
    versions.values().map(|versions| versions.len() - 1).sum()
}
