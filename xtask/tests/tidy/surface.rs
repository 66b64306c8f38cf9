//! What users of burn-dist see: every public path of the crate, found as text, with re-exports followed into the other
//! crates of the workspace.

mod items;

use std::collections::{BTreeMap, BTreeSet};

use crate::falling::only_falls;
use crate::workspace::{read, rust_files, workspace};
use items::Crates;

/// How many items the fronts show, modules included. These numbers only fall, or rise with a reason in the commit.
const ITEMS: [(&str, usize); 2] = [("burn-dist", 681), ("burn-dist-021", 408)];

#[test]
fn every_public_item_has_one_path() {
    for (package, items) in ITEMS {
        check_package(package, items);
    }
}

fn check_package(package: &str, items: usize) {
    let paths = Crates::paths_of_package(package);
    let mut of_definition: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, definition) in &paths {
        of_definition.entry(definition).or_default().insert(path);
    }
    let several = of_definition.iter().filter(|(_, paths)| paths.len() > 1);
    let wrong: Vec<String> = several
        .map(|(definition, paths)| format!("{definition}: {paths:?}"))
        .collect();
    let list: Vec<&str> = paths.iter().map(|(path, _)| path.as_str()).collect();
    let count = only_falls(
        &format!("public items of {package}"),
        list.len(),
        items,
        &list.join("\n"),
    );
    println!(
        "{package}: {} paths of {} items; at most {} of one item",
        list.len(),
        of_definition.len(),
        of_definition.values().map(BTreeSet::len).max().unwrap_or(0)
    );
    assert!(count.is_none(), "\n{}", count.unwrap_or_default());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn planted_paths_are_found() {
    let code = "mod inner { pub struct A; pub(crate) struct B; #[doc(hidden)] pub struct C; pub fn twin() {} mod twin {}
        pub mod deep { pub(super) fn g() {} pub fn f<T>(x: [u8; 2]) -> T {} } }
        pub use inner::{A, deep, twin}; pub use self::inner::A as Again; pub(crate) use inner::B;
        #[cfg(test)] pub mod tests { pub struct T; }";
    let paths = Crates::of("a", code).paths("a");
    let found: Vec<&str> = paths.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        found,
        ["a::A", "a::Again", "a::deep", "a::deep::f", "a::twin"]
    );
}

#[test]
fn files_that_documentation_names_exist() {
    let root = workspace();
    let mut files = vec![root.join("CONTRIBUTING.md")];
    rust_files(&root.join("burn-dist-021/src/parallel"), &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let text = read(&file);
        let is_markdown = file.extension().is_some_and(|extension| extension == "md");
        let lines = text
            .lines()
            .filter(|line| is_markdown || line.starts_with("//! |"));
        for line in lines {
            // Every other piece between backticks is code.
            for name in line.split('`').skip(1).step_by(2) {
                let is_path = name.contains('/') && !name.contains([' ', ':', '*', '<']);
                if is_path && !root.join(name).exists() {
                    wrong.push(format!("{}: {name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
