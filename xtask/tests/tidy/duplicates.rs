//! Crates that a program is built with in several versions: each costs time to build, and types that do not match.
//!
//! A program is of one line of Burn. The lock file has both lines, so what is counted is what the packages of one line
//! are built with: a crate that each line has in a version of its own is no duplicate.

use std::collections::{BTreeMap, BTreeSet};

use crate::falling::only_falls;
use crate::lock::{Package, built_with, edges, packages};
use crate::workspace::{read, workspace};

/// Whose packages they are, and how many versions there are beyond the first of each crate. These numbers only fall.
const SUPERFLUOUS_VERSIONS: [(Line, usize); 3] =
    [(Line::Current, 68), (Line::Before, 54), (Line::Neither, 18)];
/// The crates that a package of a line is made of: with one of these versions it is of Burn 0.21, with another of the
/// current line.
const BEFORE: [(&str, &str); 2] = [("burn-backend", "0.21."), ("cubecl", "0.10.")];

/// A line of Burn that a package of the workspace is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Current,
    Before,
    Neither,
    /// Both: its tests compare them. Packages of one line are counted.
    Both,
}

#[test]
fn duplicate_versions_only_become_fewer() {
    let lock = read(&workspace().join("Cargo.lock"));
    let packages = packages(&lock);
    assert!(!packages.is_empty(), "nothing to check in Cargo.lock");
    let mut wrong = Vec::new();
    for (line, allowed) in SUPERFLUOUS_VERSIONS {
        let versions = versions(&packages, line);
        let mut list = String::new();
        for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
            let versions: Vec<&str> = versions.iter().copied().collect();
            list += &format!("  {name} {}\n", versions.join(", "));
        }
        let what = format!("superfluous versions in packages of the line `{line:?}`");
        wrong.extend(only_falls(&what, superfluous(&versions), allowed, &list));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn planted_duplicates_are_counted_for_the_line_that_has_them() {
    let package = |name: &str, version: &str, dependencies: &[&str], is_own: bool| {
        let source = if is_own {
            ""
        } else {
            "source = \"registry\"\n"
        };
        let dependencies: String = dependencies
            .iter()
            .map(|name| format!(" \"{name}\",\n"))
            .collect();
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n{source}dependencies = [\n{dependencies}]\n\n"
        )
    };
    let lock = [
        "version = 4\n\n".to_string(),
        package("own-021", "0.1.0", &["burn-backend 0.21.0", "plain"], true),
        package("own", "0.1.0", &["burn-backend 0.22.1", "plain"], true),
        package("plain", "0.1.0", &["a 1.0.0"], true),
        package(
            "burn-backend",
            "0.21.0",
            &["a 1.0.0", "b 1.0.0", "b 2.0.0"],
            false,
        ),
        package(
            "burn-backend",
            "0.22.1",
            &["a 2.0.0", "a 3.0.0", "b 2.0.0"],
            false,
        ),
        package("a", "1.0.0", &[], false),
        package("a", "2.0.0", &[], false),
        package("a", "3.0.0", &[], false),
        package("b", "1.0.0", &[], false),
        package("b", "2.0.0", &[], false),
    ]
    .concat();
    let packages = packages(&lock);
    let of = |line| superfluous(&versions(&packages, line));
    assert_eq!(of(Line::Before), 1, "b");
    assert_eq!(of(Line::Current), 2, "a in three versions");
    assert_eq!(of(Line::Neither), 0, "plain alone has one of each");
}

/// Returns the versions of each crate that packages of a line are built with, themselves among them.
fn versions<'a>(packages: &[Package<'a>], line: Line) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let edges = edges(packages);
    let roots = packages.iter().enumerate();
    for (root, _) in roots.filter(|(_, package)| package.is_of_workspace) {
        let built_with = built_with(&edges, root);
        if line_of(packages, &built_with) != line {
            continue;
        }
        for index in built_with {
            let Package { name, version, .. } = packages[index];
            versions.entry(name).or_default().insert(version);
        }
    }
    versions
}

fn line_of(packages: &[Package<'_>], built_with: &BTreeSet<usize>) -> Line {
    let burn = built_with.iter().map(|index| &packages[*index]);
    let of_burn = burn.filter(|package| BEFORE.iter().any(|(name, _)| package.name == *name));
    let is_before = |package: &Package<'_>| {
        let mut known = BEFORE.iter();
        known.any(|(name, version)| package.name == *name && package.version.starts_with(version))
    };
    let lines: Vec<bool> = of_burn.map(is_before).collect();
    match (lines.contains(&true), lines.contains(&false)) {
        (true, false) => Line::Before,
        (false, true) => Line::Current,
        (false, false) => Line::Neither,
        (true, true) => Line::Both,
    }
}

fn superfluous(versions: &BTreeMap<&str, BTreeSet<&str>>) -> usize {
    versions.values().map(|versions| versions.len() - 1).sum()
}
