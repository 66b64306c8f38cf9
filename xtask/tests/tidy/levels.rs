//! Levels of optimisation in the profile of tests.

use std::collections::BTreeSet;

use crate::lock::{built_with, edges, packages};
use crate::workspace::{read, workspace};

/// The crates in which tests spend their time.
const HOT: [&str; 6] = [
    "burn-dist-checkpoint",
    "burn-dist-comm",
    "burn-dist-engine",
    "burn-dist-launch",
    "burn-dist-ops",
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
    let edges = edges(&packages);
    for hot in HOT {
        let root = packages.iter().position(|package| package.name == hot);
        let below = built_with(&edges, root.expect("a package"));
        let below: BTreeSet<&str> = below.iter().map(|index| packages[*index].name).collect();
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
