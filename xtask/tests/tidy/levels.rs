//! Levels of optimisation in the profile of tests.

use std::collections::BTreeSet;

use crate::lock::{Package, packages};
use crate::workspace::{read, workspace};

/// The crates in which tests spend their time.
const HOT: [&str; 5] = [
    "burn-dist-checkpoint",
    "burn-dist-comm",
    "burn-dist-engine",
    "burn-dist-launch",
    "burn-dist-plan",
];

/// What is at level 0 below them all the same: at level 1 it takes longer to compile than tests gain.
const ALLOWED: [&str; 1] = ["burn-flex"];

/// A crate at level 0 exports the inline functions of the standard library that it calls, as they are, and a crate at
/// level 1 above it calls those instead of its own: `next` of a range, in every loop.
#[test]
fn nothing_unoptimised_is_below_what_tests_spend_their_time_in() {
    let manifest = read(&workspace().join("Cargo.toml"));
    let unoptimised = unoptimised(&manifest);
    assert!(unoptimised.contains("burn-flex"), "{unoptimised:?}");
    let lock = read(&workspace().join("Cargo.lock"));
    let packages = packages(&lock);
    for hot in HOT {
        let below = below(hot, &packages);
        assert!(below.len() > 10, "{hot}: {below:?}");
        let wrong: Vec<_> = unoptimised.intersection(&below).collect();
        assert!(
            wrong.iter().all(|name| ALLOWED.contains(name)),
            "below {hot} these are at level 0: {wrong:?}"
        );
    }
}

/// Returns the names of packages that the profile `dev` has at level 0.
fn unoptimised(manifest: &str) -> BTreeSet<&str> {
    let (_, packages) = manifest
        .split_once("[profile.dev.package]\n")
        .expect("a profile");
    let lines = packages.lines().take_while(|line| !line.starts_with('['));
    let named = lines.filter(|line| line.contains("opt-level = 0"));
    let names = named.filter_map(|line| line.split([' ', '@']).next());
    names.map(|name| name.trim_matches('"')).collect()
}

/// Returns the names of all packages that one may be made of, with any features.
fn below<'a>(name: &'a str, packages: &[Package<'a>]) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![name]);
    while let Some(next) = open.pop() {
        for package in packages.iter().filter(|package| package.name == next) {
            let names = package.dependencies.iter();
            let names = names.filter_map(|dependency| dependency.split(' ').next());
            open.extend(names.filter(|name| found.insert(*name)));
        }
    }
    found
}
