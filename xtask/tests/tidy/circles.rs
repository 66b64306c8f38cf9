//! Circles of files inside a crate: files that cannot be read one after the other, because each uses, over others or
//! directly, what the rest define.
//!
//! An arrow goes from a file to the file that defines what it names: what it imports, and what it names by a path.
//! Re-exports are followed to the definition. What a file only hands on (`pub use`) it does not use, and declaring a
//! module (`mod x;`) is no arrow either; everything else between a module and its children is.

mod components;
mod names;
pub(crate) mod scopes;

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::falling::only_falls;
use crate::text::without_text;
use crate::workspace::{packages, program_files, read};
use components::components;
use names::{Arrows, arrows};

/// How many files of a crate lie in circles. These numbers only fall.
const FILES_IN_CIRCLES: &[(&str, usize)] = &[
    ("burn-dist", 0),
    ("burn-dist-021", 0),
    ("burn-dist-checkpoint", 0),
    ("burn-dist-comm", 0),
    ("burn-dist-cubecl", 0),
    ("burn-dist-door", 0),
    ("burn-dist-engine", 0),
    ("burn-dist-front", 0),
    ("burn-dist-gpu", 0),
    ("burn-dist-kernels", 0),
    ("burn-dist-launch", 0),
    ("burn-dist-layout", 0),
    ("burn-dist-lm", 0),
    ("burn-dist-macros", 0),
    ("burn-dist-mesh", 0),
    ("burn-dist-ops", 0),
    ("burn-dist-plan", 0),
    ("burn-dist-train", 0),
];

/// A folder whose files may lie in circles.
struct Exception {
    package: &'static str,
    /// Below `src`, with a slash at its end.
    folder: &'static str,
    /// How many of its files lie in circles, all of which are inside of it. The number only falls.
    files: usize,
    reason: &'static str,
}

/// The folders whose files may lie in circles.
const EXCEPTIONS: &[Exception] = &[Exception {
    package: "burn-dist-ops",
    folder: "",
    files: 16,
    reason: "an operation is one of its family's and a family is a row of the table of all operations: lowering and \
             float8 make operations anew and run them by that table, so what a family is written in (emit, lower, \
             execute, kinds) and the table need each other. Apart they would be two tables, which have to agree.",
}];

#[test]
fn circles_only_become_fewer() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("burn-dist") {
            continue;
        }
        let allowed = FILES_IN_CIRCLES.iter().find(|(other, _)| **other == *name);
        let (_, allowed) =
            allowed.unwrap_or_else(|| panic!("{name} has no number of files in circles"));
        let src = package.join("src");
        let files = program_files(&src).into_iter().map(|path| {
            let place = path.strip_prefix(&src).expect("a source of this crate");
            let code = without_text(&read(&path));
            (place.to_string_lossy().into_owned(), code)
        });
        let mut circles = Circles::of(&name.replace('-', "_"), &files.collect());
        for exception in EXCEPTIONS.iter().filter(|of| *of.package == *name) {
            let inside = circles.take_inside(exception.folder);
            let what = format!("files of {name} in circles inside {}", exception.folder);
            let (found, list) = (inside.num_files(), inside.text());
            let list = format!("  allowed because {}\n{list}", exception.reason);
            wrong.extend(only_falls(&what, found, exception.files, &list));
        }
        let what = format!("files of {name} in circles");
        wrong.extend(only_falls(
            &what,
            circles.num_files(),
            *allowed,
            &circles.text(),
        ));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The circles of one crate.
struct Circles {
    files: Vec<String>,
    arrows: Arrows,
    circles: Vec<Vec<usize>>,
}

impl Circles {
    /// Finds the circles among `files`: their paths below `src`, with their code without comments and texts.
    fn of(name: &str, files: &BTreeMap<String, String>) -> Self {
        let arrows = arrows(name, files);
        let mut targets = vec![Vec::new(); files.len()];
        for (from, to) in arrows.keys() {
            targets[*from].push(*to);
        }
        let mut circles = components(&targets);
        circles.retain(|circle| circle.len() > 1);
        circles.iter_mut().for_each(|circle| circle.sort());
        circles.sort();
        Self {
            files: files.keys().cloned().collect(),
            arrows,
            circles,
        }
    }

    /// Takes the circles out all of whose files are below `folder`.
    fn take_inside(&mut self, folder: &str) -> Self {
        let is_inside = |circle: &Vec<usize>| {
            let mut files = circle.iter();
            files.all(|file| self.files[*file].starts_with(folder))
        };
        let (inside, others) = std::mem::take(&mut self.circles)
            .into_iter()
            .partition(is_inside);
        self.circles = others;
        Self {
            files: self.files.clone(),
            arrows: self.arrows.clone(),
            circles: inside,
        }
    }

    fn num_files(&self) -> usize {
        self.circles.iter().map(Vec::len).sum()
    }

    /// Returns every file in a circle, with the arrows from it to others of the circle, each with a name that is used.
    fn text(&self) -> String {
        let mut circle_of = vec![None; self.files.len()];
        for (index, circle) in self.circles.iter().enumerate() {
            circle
                .iter()
                .for_each(|file| circle_of[*file] = Some(index));
        }
        let mut text = String::new();
        for circle in &self.circles {
            let _ = writeln!(text, "  a circle of {} files:", circle.len());
            for file in circle {
                let _ = writeln!(text, "    {}", self.files[*file]);
                for ((_, to), what) in self.arrows.range((*file, 0)..(*file + 1, 0)) {
                    if circle_of[*to] == circle_of[*file] {
                        let _ = writeln!(text, "      -> {} for {what}", self.files[*to]);
                    }
                }
            }
        }
        text
    }
}

/// The circles of a crate `planted`, as text.
fn planted(files: &[(&str, &str)]) -> String {
    let files = files
        .iter()
        .map(|(path, code)| (path.to_string(), code.to_string()));
    Circles::of("planted", &files.collect()).text()
}

#[test]
fn planted_circles_are_found() {
    let found = planted(&[
        ("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
        (
            "a/mod.rs",
            "mod deep; pub use deep::Deep; pub struct A(pub crate::b::B);",
        ),
        ("a/deep.rs", "pub struct Deep;"),
        ("b.rs", "use crate::c; pub struct B; fn f() { c::g(); }"),
        ("c.rs", "pub fn g() { let _ = crate::A::new; }"),
    ]);
    assert_eq!(
        found,
        "  a circle of 3 files:\n    \
             a/mod.rs\n      -> b.rs for crate::b::B\n    \
             b.rs\n      -> c.rs for c::g\n    \
             c.rs\n      -> a/mod.rs for crate::A::new\n"
    );
}

#[test]
fn planted_circles_are_excepted_by_folder() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a/mod.rs", "mod x; mod y;"),
        ("a/x.rs", "use super::y::Y; pub struct X;"),
        ("a/y.rs", "use super::x::X; pub struct Y;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::b::B; pub struct C;"),
    ];
    let files = files.map(|(path, code)| (path.to_string(), code.to_string()));
    let mut circles = Circles::of("planted", &files.into_iter().collect());
    let inside = circles.take_inside("a/");
    assert!(inside.text().contains("a/x.rs") && !inside.text().contains("b.rs"));
    assert!(circles.text().contains("b.rs") && !circles.text().contains("a/x.rs"));
    assert_eq!((inside.num_files(), circles.num_files()), (2, 2));
}

#[test]
fn planted_parents_and_children_are_a_circle() {
    let found = planted(&[
        ("lib.rs", "mod parent;"),
        (
            "parent.rs",
            "mod child; use child::Child; pub const N: usize = Child::N;",
        ),
        (
            "parent/child.rs",
            "use super::N as M; pub(crate) struct Child;",
        ),
    ]);
    assert!(found.starts_with("  a circle of 2 files:"), "{found:?}");
}

#[test]
fn planted_globs_are_arrows_to_what_is_used() {
    let found = planted(&[
        ("lib.rs", "mod a; mod b; mod c; pub use b::*;"),
        ("a.rs", "use crate::*; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f() -> crate::a::A { }"),
        ("c.rs", "use crate::a::*; pub struct C(A);"),
    ]);
    assert!(
        found.starts_with("  a circle of 2 files:\n    a.rs"),
        "{found:?}"
    );
}

#[test]
fn planted_lines_are_no_circles() {
    // A definition goes through its module to a neighbour, and a test, a name of another crate, and a declaration
    // are no arrows.
    let found = planted(&[
        (
            "lib.rs",
            "pub mod a; pub use a::{Deep, deep}; extern crate self as planted;",
        ),
        (
            "a/mod.rs",
            "pub mod deep; mod near; pub use deep::Deep; pub use near::*; pub(super) struct Own;",
        ),
        (
            "a/deep.rs",
            "use super::near::{Near as N, self}; use super::Own; pub struct Deep(N, near::Near);",
        ),
        (
            "a/near.rs",
            "pub struct Near; #[cfg(test)] pub(crate) use super::{Deep}; #[cfg(test)] fn f() { use super::Deep; }
              struct S { #[cfg(test)] pub deep: super::Deep, near: super::Near }
              #[cfg(test)] mod tests { use super::super::Deep; }",
        ),
        (
            "b.rs",
            "use planted::a::{Deep, deep::Deep as Same}; use std::fmt; fn b(a: a::B) { a.deep::<u8>() }",
        ),
    ]);
    assert_eq!(found, "");
}
