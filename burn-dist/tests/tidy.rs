//! The arrows between folders, and what source files may contain. ARCHITECTURE.md draws the same map.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
    (
        "burn-dist-checkpoint",
        &["burn-dist-mesh", "burn-dist-plan"],
    ),
    (
        "burn-dist-kernels",
        &["burn-dist-plan", "cubecl", "cubecl-cpp"],
    ),
    ("burn-dist-launch", &["burn-dist-comm"]),
    ("burn-dist-train", &[]),
];
/// What of `std` a pure file does without: anything that depends on when and where it runs.
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "process", "thread", "time"];
/// The only folder that touches Burn's router.
const ROUTER_FOLDER: &str = "record";
/// No source file is longer.
const LINES_MAX: usize = 1300;
/// Longer files are named in the output.
const LINES_LONG: usize = 400;

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
fn nothing_is_left_undone() {
    let mut wrong = Vec::new();
    for package in packages() {
        for (path, code) in sources(&package.join("src")) {
            for name in ["todo!", "unimplemented!", "dbg!"] {
                if code
                    .split(name)
                    .skip(1)
                    .any(|after| after.trim_start().starts_with(['(', '[', '{']))
                {
                    wrong.push(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_are_not_too_long() {
    let mut wrong = Vec::new();
    let mut files = Vec::new();
    for package in packages() {
        rust_files(&package, &mut files);
    }
    for path in files {
        let lines = read(&path).lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{lines:>5} {}", path.display()));
        } else if lines > LINES_LONG {
            println!("{lines:>5} {}: could be split by idea", path.display());
        }
    }
    assert!(
        wrong.is_empty(),
        "more than {LINES_MAX} lines:\n{}",
        wrong.join("\n")
    );
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

/// Returns every path below `root` that `code` names, groups in braces taken apart.
fn paths(code: &str, root: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{root}::")) {
        let before = code[..at].chars().next_back();
        if before.is_none_or(|c| !is_word(c) && c != '$') {
            expand("", &code[at + root.len() + 2..], &mut found);
        }
    }
    found
}

/// Reads one path at the start of `code` into `found`; returns what is left.
fn expand<'a>(prefix: &str, code: &'a str, found: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.is_empty() {
                return rest;
            }
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
            let left = expand(prefix, rest, found);
            // `as name`, or something that is no path: on to the next item.
            rest = left.find([',', '}']).map_or("", |at| &left[at..]);
        }
    }
    let end = code.find(|c| !is_word(c) && c != '*').unwrap_or(code.len());
    let path = format!("{prefix}{}", &code[..end]);
    match code[end..].trim_start().strip_prefix("::") {
        Some(rest)
            if rest
                .trim_start()
                .starts_with(|c| is_word(c) || c == '{' || c == '*') =>
        {
            expand(&format!("{path}::"), rest, found)
        }
        _ => {
            found.push(path);
            &code[end..]
        }
    }
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c| !is_word(c))
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Returns the code without comments, the insides of texts, and what follows `#[cfg(test)] mod ... {` (the end of a
/// file, here).
fn plain(source: &str) -> String {
    let code = without_text(source);
    let inline_tests = code.match_indices("#[cfg(test)]").find(|(at, mark)| {
        let item = code[at + mark.len()..].trim_start();
        item.starts_with("mod ")
            && item.find('{') < item.find(';').or(Some(usize::MAX))
            && item.contains('{')
    });
    match inline_tests {
        Some((at, _)) => code[..at].to_string(),
        None => code,
    }
}

fn without_text(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |at| &rest[at..]);
        } else if rest.starts_with("/*") {
            rest = after_block_comment(rest);
        } else if let Some((hashes, inside)) = raw_start(rest, code.chars().next_back()) {
            let end = format!("\"{hashes}");
            rest = inside.find(&end).map_or("", |at| &inside[at + end.len()..]);
            code.push_str("\"\"");
        } else if c == '"' {
            rest = after_escaped(&rest[1..], '"');
            code.push_str("\"\"");
        } else if c == '\'' && is_char_literal(rest) {
            rest = after_escaped(&rest[1..], '\'');
            code.push_str("' '");
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

fn after_block_comment(comment: &str) -> &str {
    let (mut open, mut at) = (0, 0);
    while at < comment.len() {
        let rest = &comment.as_bytes()[at..];
        (open, at) = match rest {
            [b'/', b'*', ..] => (open + 1, at + 2),
            [b'*', b'/', ..] => (open - 1, at + 2),
            _ => (open, at + 1),
        };
        if open == 0 {
            return &comment[at..];
        }
    }
    ""
}

/// Returns the hashes and what follows, if `rest` starts a raw text.
fn raw_start(rest: &str, before: Option<char>) -> Option<(&str, &str)> {
    if before.is_some_and(|c| is_word(c) && c != 'b') {
        return None;
    }
    let rest = rest.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    Some((&rest[..hashes], rest[hashes..].strip_prefix('"')?))
}

fn after_escaped(inside: &str, end: char) -> &str {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == end => return &inside[at + c.len_utf8()..],
            _ => {}
        }
    }
    ""
}

/// `'a'` and `'\n'`, but not the lifetime `'a`.
fn is_char_literal(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => true,
        (_, second) => second == Some('\''),
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn workspace() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("the workspace is above the crate")
        .to_path_buf()
}

/// The packages of the workspace.
fn packages() -> Vec<PathBuf> {
    let packages: Vec<PathBuf> = [
        "burn-dist",
        "burn-dist-checkpoint",
        "burn-dist-comm",
        "burn-dist-kernels",
        "burn-dist-launch",
        "burn-dist-macros",
        "burn-dist-mesh",
        "burn-dist-plan",
        "examples/llama",
        "examples/swap",
        "tests/features",
        "tests/programs",
    ]
    .map(|p| workspace().join(p))
    .into();
    for package in &packages {
        assert!(
            package.join("src").is_dir(),
            "{} has moved",
            package.display()
        );
    }
    packages
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

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files at `place` that are part of the program, without comments, texts and tests.
fn sources(place: &Path) -> Vec<(PathBuf, String)> {
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
        .into_iter()
        .map(|path| {
            let code = plain(&read(&path));
            (path, code)
        })
        .collect()
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
    code.split("#[cfg(test)]")
        .skip(1)
        .filter_map(|item| {
            item.trim_start()
                .trim_start_matches("pub(crate) ")
                .strip_prefix("mod ")
        })
        .filter_map(|item| item.split_once(';').map(|(name, _)| name.trim()))
        .filter(|name| name.chars().all(is_word))
        .map(|name| inside.join(name))
        .collect()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                rust_files(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
