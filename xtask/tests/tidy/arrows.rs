//! The arrows between folders and crates. ARCHITECTURE.md draws the same map.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::paths;
use crate::text::{plain, words};
use crate::workspace::{packages, program_files, read, sources, workspace};

/// The folders (and files) that only compute, and what of their crate each may use besides itself.
const PURE: &[(&str, &[&str])] = &[
    ("burn-dist-layout/src/bytes.rs", &[]),
    ("burn-dist-layout/src/cost.rs", &[]),
    ("burn-dist-layout/src/policy", &[]),
    ("burn-dist-plan/src/pool.rs", &[]),
    ("burn-dist-plan/src/pipeline", &["bytes", "mesh"]),
    ("burn-dist-plan/src/rule", &["ir", "layout", "mesh"]),
    ("burn-dist-plan/src/ir", BELOW_IR),
    ("burn-dist-plan/src/facts.rs", BELOW_FACTS),
    ("burn-dist-plan/src/facts", BELOW_FACTS),
    ("burn-dist-front/src/data/order.rs", &[]),
    ("burn-dist-front/src/data/position.rs", &[]),
    ("burn-dist-front/src/data/spans.rs", &[]),
    (
        "burn-dist-front/src/parallel/pattern.rs",
        &["plan::Pattern"],
    ),
    ("burn-dist-front/src/parallel/fit.rs", &["mesh", "layout"]),
    (
        "burn-dist-front/src/parallel/error.rs",
        &["mesh", "layout", "plan::Precision", "plan::ScheduleKind"],
    ),
    (
        "burn-dist-front/src/parallel/stages.rs",
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
/// What of the planner a program and its operations may use: no pass, and nothing that passes are a part of.
const BELOW_IR: &[&str] = &[
    "bytes",
    "error",
    "layout",
    "memory::MemoryClass",
    "mesh",
    "pipeline",
    "policy",
    "rule",
    "storage",
];
/// What facts may use.
const BELOW_FACTS: &[&str] = &[
    "error", "facts", "ir", "layout", "mesh", "policy", "pool", "rule",
];
/// The crates that only compute.
const PURE_CRATES: &[&str] = &[
    "burn-dist-layout",
    "burn-dist-mesh",
    "burn-dist-ops",
    "burn-dist-plan",
];
/// The files of other crates that only compute, with what lies in their folder.
const PURE_FILES: &[&str] = &[
    "burn-dist-comm/src/flight/format.rs",
    "burn-dist-launch/src/doctor/clocks.rs",
    "burn-dist-launch/src/doctor/diagnosis.rs",
    "burn-dist-launch/src/doctor/evidence.rs",
];
/// The crates that know nothing of Burn, with what each may use of this workspace and of CubeCL.
const CRATES_WITHOUT_BURN: &[(&str, &[&str])] = &[
    ("burn-dist-mesh", &[]),
    ("burn-dist-layout", &["burn-dist-mesh"]),
    ("burn-dist-plan", &["burn-dist-layout", "burn-dist-mesh"]),
    ("burn-dist-comm", &["burn-dist-mesh"]),
    ("burn-dist-gpu", &["burn-dist-comm", "burn-dist-mesh"]),
    (
        "burn-dist-checkpoint",
        &["burn-dist-layout", "burn-dist-mesh"],
    ),
    ("burn-dist-kernels", &["burn-dist-mesh", "burn-dist-plan"]),
    (
        "burn-dist-cubecl",
        &[
            "burn-dist-kernels",
            "burn-dist-mesh",
            "burn-dist-plan",
            "cubecl",
        ],
    ),
    (
        "burn-dist-cubecl-021",
        &[
            "burn-dist-kernels",
            "burn-dist-plan",
            "cubecl",
            "cubecl-cpp",
        ],
    ),
    ("burn-dist-launch", &["burn-dist-comm", "burn-dist-mesh"]),
    ("burn-dist-train", &["burn-dist-mesh"]),
    (
        "burn-dist-front",
        &[
            "burn-dist-checkpoint",
            "burn-dist-kernels",
            "burn-dist-mesh",
            "burn-dist-plan",
        ],
    ),
];
/// What of `std` a pure file does without: anything that depends on when and where it runs.
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "process", "thread", "time"];
/// The only folders that touch Burn's router.
const ROUTER_FOLDERS: &[&str] = &[
    "burn-dist-door/src",
    "burn-dist-engine/src/record",
    "burn-dist-ops/src/burn",
];
/// The crates below Burn's own tensors and modules, by folder and package, and which of ours each is built without: a
/// crate that Burn is built on may depend on the door, and one does.
const BELOW_BURN: &[(&str, &str, &[&str])] = &[
    ("burn-dist-ops", "burn-dist-ops", NOT_IN_OPERATIONS),
    (
        "burn-dist-ops-021",
        "burn-dist-ops-021",
        &["burn-dist-engine-021"],
    ),
    ("burn-dist-engine", "burn-dist-engine", &["burn-dist"]),
    (
        "burn-dist-engine-021",
        "burn-dist-engine-021",
        &["burn-dist-021"],
    ),
    ("burn-dist-door", "burn-dist-door", NOT_IN_THE_DOOR),
    ("burn-dist-door-021", "burn-dist-door-021", NOT_IN_THE_DOOR),
    (
        "carriers/burn-ndarray",
        "burn-ndarray@0.22.99",
        NOT_IN_THE_DOOR,
    ),
];
/// What Burn is compiled without, whatever it finds meshes by.
const NOT_IN_THE_DOOR: &[&str] = &[
    "burn-autodiff",
    "burn-dist-comm",
    "burn-dist-engine",
    "burn-dist-gpu",
    "burn-dist-kernels",
    "burn-dist-launch",
    "burn-dist-layout",
    "burn-dist-ops",
    "burn-dist-plan",
    "burn-flex",
];
/// What operations, and with them the planner, are compiled without: what records and runs them; and Flex, whose
/// unoptimised functions they would call.
const NOT_IN_OPERATIONS: &[&str] = &[
    "burn-autodiff",
    "burn-dist-comm",
    "burn-dist-engine",
    "burn-dist-gpu",
    "burn-dist-launch",
    "burn-flex",
];
/// The door has no more lines without its tests: Burn is compiled again whenever one of them changes.
const DOOR_LINES_MAX: usize = 4000;
/// The crates of Burn that these are built without.
const ABOVE: &[&str] = &[
    "burn",
    "burn-core",
    "burn-nn",
    "burn-optim",
    "burn-tensor",
    "burn-train",
];

#[test]
fn pure_folders_only_compute() {
    let mut wrong = Vec::new();
    for (place, allowed) in PURE {
        let (src, place) = place.split_at(place.find("/src/").expect("sources") + "/src/".len());
        let src = workspace().join(src);
        let sources = sources(&src.join(place));
        assert!(!sources.is_empty(), "nothing to check in {place}");
        for (path, code) in sources {
            let own = place.split('/').next().unwrap_or(place);
            let short = path.strip_prefix(&src).expect("a source of the crate");
            let found = impurities(&code, depth(short), own, allowed);
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
            let folder = Path::new(name).parent().and_then(Path::file_name);
            let own = folder.map_or_else(String::new, |name| name.to_string_lossy().into());
            let found = impurities(&code, 2, &own, &[]).into_iter();
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
fn crates_below_burn_are_built_without_what_is_above() {
    for (folder, name, without) in BELOW_BURN {
        let manifest = read(&workspace().join(folder).join("Cargo.toml"));
        let features = manifest
            .split_once("[features]")
            .map_or("", |(_, rest)| rest);
        let features = features.split("\n[").next().unwrap_or_default();
        let features = features
            .lines()
            .filter_map(|line| line.split_once(" = "))
            .map(|(feature, _)| feature)
            .collect::<Vec<_>>()
            .join(",");
        let tree = Command::new(env!("CARGO"))
            .current_dir(workspace())
            .args([
                "tree",
                "--locked",
                "--offline",
                "--edges",
                "normal",
                "--prefix",
                "none",
            ])
            .args(["--package", name, "--features", &features])
            .output()
            .expect("Cargo runs");
        let text = String::from_utf8_lossy(&tree.stdout);
        assert!(
            tree.status.success() && text.contains("burn-backend v"),
            "{name}: {}",
            String::from_utf8_lossy(&tree.stderr)
        );
        let found: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .filter(|package| ABOVE.contains(package) || without.contains(package))
            .collect();
        assert!(found.is_empty(), "{name} is to be built without {found:?}");
    }
}

/// Touching the planner, say, compiles no crate of Burn again.
#[test]
fn of_ours_burn_is_built_on_the_door_alone() {
    let above_door = dependents("burn-dist-door");
    for package in [
        "burn-ndarray v0.22.99",
        "burn-dispatch v0.22.1",
        "burn-core v0.22.1",
    ] {
        let is_above = |line: &String| line.starts_with(package);
        assert!(
            above_door.iter().any(is_above),
            "{package} is not built on the door"
        );
    }
    for (name, _) in CRATES_WITHOUT_BURN
        .iter()
        .filter(|(name, _)| *name != "burn-dist-mesh" && !name.ends_with("-021"))
    {
        let above = dependents(name);
        let burn: Vec<&String> = above
            .iter()
            .filter(|line| line.starts_with("burn") && !line.starts_with("burn-dist"))
            .collect();
        assert!(burn.is_empty(), "{name} is compiled before {burn:?}");
    }
}

/// Returns what of all that `burn-dist` is built of depends on a package, each with its version.
fn dependents(package: &str) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .current_dir(workspace())
        .args(["tree", "--locked", "--offline", "--edges", "normal,build"])
        .args(["--prefix", "none", "--package", "burn-dist"])
        .args(["--features", "train,wgpu", "--invert", package])
        .output()
        .expect("Cargo runs");
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{package}: {errors}");
    let text = String::from_utf8_lossy(&tree.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_door_is_small() {
    let files = program_files(&workspace().join("burn-dist-door/src"));
    let lines = |path: &PathBuf| {
        let text = read(path);
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        code.unwrap_or_default().lines().count()
    };
    let lines: usize = files.iter().map(lines).sum();
    assert!(lines <= DOOR_LINES_MAX, "{lines} lines of {DOOR_LINES_MAX}");
}

#[test]
fn only_recording_touches_the_router() {
    for package in packages() {
        if package.ends_with("xtask") {
            continue;
        }
        for (path, code) in sources(&package.join("src")) {
            let short = path.strip_prefix(workspace()).expect("of the workspace");
            if words(&code).any(|word| word == "burn_router") {
                let may = ROUTER_FOLDERS
                    .iter()
                    .any(|folder| short.starts_with(folder));
                assert!(may, "{}", short.display());
            }
        }
    }
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

/// Number of modules around the items of a file below `src`: 1 for `plan/mod.rs`, 2 for `plan/window.rs`.
fn depth(path: &Path) -> usize {
    let count = path.components().count();
    if path.ends_with("mod.rs") {
        count - 1
    } else {
        count
    }
}
