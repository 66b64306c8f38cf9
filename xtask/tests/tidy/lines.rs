//! Where lines of Burn differ: in files that are named here, and elsewhere in whole modules and what is imported of them.

use crate::text::without_text;
use crate::workspace::{packages, program_files, read, workspace};

/// The files and folders that may say `cfg(burn_021)` of anything.
const SEAMS: &[&str] = &[
    "burn-dist-cubecl/src/dialect.rs",
    "burn-dist-door/src/backend",
    "burn-dist-door/src/burn.rs",
    "burn-dist-door/src/data.rs",
    "burn-dist-door/src/elements.rs",
    "burn-dist-door/src/registered.rs",
    "burn-dist-engine/src/burn",
    "burn-dist-engine/src/burn.rs",
    "burn-dist-ops/src/burn",
    "burn-dist-ops/src/burn.rs",
    "burn-dist-ops/src/family.rs",
    "burn-dist-ops/src/table.rs",
];

#[test]
fn lines_of_burn_differ_in_seams_and_whole_modules() {
    let root = workspace();
    let mut wrong = Vec::new();
    for package in packages() {
        for path in program_files(&package.join("src")) {
            let short = path.strip_prefix(&root).unwrap_or(&path);
            if SEAMS.iter().any(|seam| short.starts_with(seam)) {
                continue;
            }
            let found = inside_items(&without_text(&read(&path)));
            wrong.extend(
                found
                    .into_iter()
                    .map(|item| format!("{}: {item}", short.display())),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "what differs by line of Burn belongs to a seam ({}), or to a module that one line has:\n{}",
        SEAMS.join(", "),
        wrong.join("\n")
    );
}

/// Returns the items that are of one line and neither modules nor imports: what each begins with.
fn inside_items(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[cfg") {
        let Some((condition, rest)) = code[at..].split_once(']') else {
            continue;
        };
        if !condition.contains("burn_021") {
            continue;
        }
        let mut item = rest.trim_start();
        while let Some(rest) = item
            .strip_prefix("#[")
            .and_then(|rest| rest.split_once(']'))
        {
            item = rest.1.trim_start();
        }
        let visibilities = ["pub(crate) ", "pub(super) ", "pub "];
        let visible = visibilities
            .iter()
            .find_map(|visibility| item.strip_prefix(visibility));
        let item = visible.unwrap_or(item);
        if !item.starts_with("mod ") && !item.starts_with("use ") {
            found.push(item.lines().next().unwrap_or_default().to_string());
        }
    }
    found
}

#[test]
fn planted_differences_are_found() {
    let modules = "#[cfg(burn_021)]\nmod a;\n#[cfg_attr(burn_021, path = \"\")]\npub(crate) mod b;\n\
                   #[cfg(all(burn_021, feature = \"\"))]\n#[doc(hidden)]\npub use a::X;\n#[cfg(test)]\nfn f() {}";
    assert_eq!(inside_items(modules), Vec::<String>::new());
    assert_eq!(
        inside_items("#[cfg(not(burn_021))]\npub fn f() {}"),
        ["fn f() {}"]
    );
    assert_eq!(inside_items("fn f() { #[cfg(burn_021)] g(); }"), ["g(); }"]);
}
