//! The arrows between folders and crates. ARCHITECTURE.md draws the same map.

use std::path::{Path, PathBuf};

use crate::paths::paths;
use crate::text::{plain, words};
use crate::workspace::{read, sources, workspace};

/// The folders (and files) that only compute, and what of this crate each may use besides itself.
const PURE: &[(&str, &[&str])] = &[
    ("ops", &["mesh", "layout", "plan"]),
    ("data/order.rs", &[]),
    ("data/position.rs", &[]),
    ("data/spans.rs", &[]),
    ("parallel/pattern.rs", &["plan::Pattern"]),
    ("parallel/fit.rs", &["mesh", "layout"]),
    ("parallel/error.rs", &["mesh", "layout", "plan::Precision"]),
    (
        "parallel/stages.rs",
        &[
            "mesh",
            "plan::Pipeline",
            "plan::ScheduleChoice",
            "plan::Stage",
            "plan::clock::ModuleCosts",
            "plan::clock::is_inside",
        ],
    ),
];
/// The crates that only compute.
const PURE_CRATES: &[&str] = &["burn-dist-mesh", "burn-dist-plan"];
/// The files of other crates that only compute, with what lies in their folder.
const PURE_FILES: &[&str] = &[
    "burn-dist-comm/src/flight/format.rs",
    "burn-dist-comm/src/flight/evidence.rs",
    "burn-dist-comm/src/flight/diagnosis.rs",
];
/// The crates that know nothing of Burn, with what each may use of this workspace and of CubeCL.
const CRATES_WITHOUT_BURN: &[(&str, &[&str])] = &[
    ("burn-dist-mesh", &[]),
    ("burn-dist-plan", &["burn-dist-mesh"]),
    ("burn-dist-comm", &["burn-dist-mesh"]),
    ("burn-dist-gpu", &["burn-dist-comm", "burn-dist-mesh"]),
    (
        "burn-dist-checkpoint",
        &["burn-dist-mesh", "burn-dist-plan"],
    ),
    (
        "burn-dist-kernels",
        &["burn-dist-mesh", "burn-dist-plan", "cubecl", "cubecl-cpp"],
    ),
    ("burn-dist-launch", &["burn-dist-comm", "burn-dist-mesh"]),
    ("burn-dist-train", &["burn-dist-mesh"]),
];
/// What of `std` a pure file does without: anything that depends on when and where it runs.
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "process", "thread", "time"];
/// The only folder that touches Burn's router.
const ROUTER_FOLDER: &str = "record";

#[test]
fn pure_folders_only_compute() {
    let mut wrong = Vec::new();
    for (place, allowed) in PURE {
        let sources = sources(&src().join(place));
        assert!(!sources.is_empty(), "nothing to check in {place}");
        for (path, code) in sources {
            let own = place.split('/').next().unwrap_or(place);
            let found = impurities(&code, depth(&path), own, allowed);
            wrong.extend(
                found
                    .into_iter()
                    .map(|what| format!("{}: {what}", path.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn pure_crates_only_compute() {
    let mut wrong = Vec::new();
    for name in PURE_CRATES {
        for (path, code) in sources(&workspace().join(name).join("src")) {
            let found = impure_std(&code).into_iter();
            wrong.extend(found.map(|what| format!("{}: {what}", path.display())));
        }
    }
    for name in PURE_FILES {
        for (path, code) in sources(&workspace().join(name)) {
            let found = impurities(&code, 2, "flight", &[]).into_iter();
            wrong.extend(found.map(|what| format!("{}: {what}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn crates_without_burn_have_none_among_their_dependencies() {
    let mut wrong = Vec::new();
    for (name, allowed) in CRATES_WITHOUT_BURN {
        let manifest = read(&workspace().join(name).join("Cargo.toml"));
        let (_, dependencies) = manifest
            .split_once("[dependencies]")
            .unwrap_or_else(|| panic!("{name} has dependencies"));
        let dependencies = dependencies
            .split("[dev-dependencies]")
            .next()
            .unwrap_or_default();
        let found = dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|other| other.starts_with("burn") || other.starts_with("cubecl"));
        let found: Vec<&str> = found.collect();
        if found != *allowed {
            wrong.push(format!("{name}: {found:?} instead of {allowed:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn only_record_touches_the_router() {
    let mut users: Vec<String> = Vec::new();
    for (path, code) in sources(&src()) {
        if words(&code).any(|word| word == "burn_router") {
            users.push(
                relative(&path)
                    .components()
                    .next()
                    .map_or_else(String::new, |c| c.as_os_str().to_string_lossy().into()),
            );
        }
    }
    users.dedup();
    assert_eq!(users, [ROUTER_FOLDER]);
}

#[test]
fn planted_impurities_are_found() {
    let found = |code: &str| impurities(&plain(code), 2, "plan", &["mesh", "record::visit"]);
    let clean = r##"
        //! unsafe, std::env and crate::run in a comment
        use crate::mesh::{AxisIndex, Rank};
        use crate::plan::Plan;
        use crate::record::visit::visit_ref;
        use super::window::Window;
        const TEXT: &str = "unsafe // std::time crate::run";
        const RAW: &str = r#"" unsafe"#;
        fn life<'a>(text: &'a str, quote: char) -> bool { text.contains('"') || quote == '\'' }
        #[cfg(test)]
        mod tests { use crate::run::Fault; }
    "##;
    assert_eq!(found(clean), Vec::<String>::new());
    assert_eq!(found("use crate::run::Fault;"), ["uses crate::run::Fault"]);
    assert_eq!(
        found("use crate::{mesh::Rank, record::{visit, Dist}};"),
        ["uses crate::record::Dist"]
    );
    assert_eq!(
        found("use super::super::run::Fault;"),
        ["reaches the root by super: write crate::"]
    );
    assert_eq!(
        found("let now = std::time::Instant::now();"),
        ["uses std::time::Instant::now"]
    );
    assert_eq!(found("use std::{sync::Arc, thread};"), ["uses std::thread"]);
    assert_eq!(found("/* /* */ */ unsafe { }"), ["is unsafe"]);
    assert_eq!(
        found("use burn_dist::run;"),
        ["names this crate from outside"]
    );
    assert_eq!(
        found("#[cfg(test)]\nmod oracle;\nuse crate::run::Fault;"),
        ["uses crate::run::Fault"]
    );
}

/// Returns what `code` (without comments and texts) does that a pure file does not.
fn impurities(code: &str, depth: usize, own: &str, allowed: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for path in paths(code, "crate") {
        let within = |place: &&str| path == **place || path.starts_with(&format!("{place}::"));
        if !within(&own) && !allowed.iter().any(within) {
            wrong.push(format!("uses crate::{path}"));
        }
    }
    wrong.extend(impure_std(code));
    if code.contains(&"super::".repeat(depth)) {
        wrong.push("reaches the root by super: write crate::".into());
    }
    if words(code).any(|word| word == "burn_dist") {
        wrong.push("names this crate from outside".into());
    }
    if words(code).any(|word| word == "unsafe") {
        wrong.push("is unsafe".into());
    }
    wrong
}

/// Returns what of `std` `code` uses that depends on when and where it runs.
fn impure_std(code: &str) -> Vec<String> {
    let first = |path: &String| path.split("::").next().unwrap_or_default().to_string();
    paths(code, "std")
        .into_iter()
        .filter(|path| IMPURE_STD.contains(&first(path).as_str()))
        .map(|path| format!("uses std::{path}"))
        .collect()
}

fn src() -> PathBuf {
    workspace().join("burn-dist/src")
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix(src()).expect("a source of this crate")
}

/// Number of modules around the items of a file: 1 for `plan/mod.rs`, 2 for `plan/window.rs`.
fn depth(path: &Path) -> usize {
    let count = relative(path).components().count();
    if path.ends_with("mod.rs") {
        count - 1
    } else {
        count
    }
}
