//! Programs that must not compile, and what the compiler says of them: the texts belong to the programs. What they say
//! is compared by ignored tests, on one toolchain; this is what can be known without a compiler.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::workspace::{packages, read, workspace};

#[test]
fn texts_of_the_compiler_belong_to_their_programs() {
    let (mut wrong, mut programs) = (Vec::new(), 0);
    let folders = packages()
        .into_iter()
        .map(|package| package.join("tests/derive"));
    for folder in folders.filter(|folder| folder.is_dir()) {
        let (sources, texts) = (names(&folder, "rs"), names(&folder, "stderr"));
        programs += sources.len();
        let short = folder.strip_prefix(workspace()).unwrap_or(&folder);
        for name in sources.symmetric_difference(&texts) {
            let path = short.join(name);
            wrong.push(format!(
                "{}: its program or its text is missing",
                path.display()
            ));
        }
        for name in sources.intersection(&texts) {
            let of = |extension: &str| read(&folder.join(name).with_extension(extension));
            let path = short.join(name);
            for line in misquoted(name, &of("stderr"), &of("rs")) {
                wrong.push(format!("{}: line {line} is another one", path.display()));
            }
        }
    }
    assert!(programs >= 30, "{programs} programs");
    assert!(
        wrong.is_empty(),
        "run `TRYBUILD=overwrite cargo test -p PACKAGE --test derive -- --ignored`, and read what it writes:\n{}",
        wrong.join("\n")
    );
}

/// Returns the names of the files of a folder that have an extension, without it.
fn names(folder: &Path, extension: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder that can be read");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let paths = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    paths
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()))
        .collect()
}

/// Returns the lines of a program that a text of the compiler quotes, by their numbers, and that are other ones.
fn misquoted(name: &str, text: &str, program: &str) -> Vec<usize> {
    let lines: Vec<&str> = program.lines().collect();
    let file = format!("{name}.rs");
    let mut is_here = false;
    let mut wrong = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(place) = line.strip_prefix("--> ") {
            let path = Path::new(place.split(':').next().unwrap_or_default());
            is_here = path.file_name().is_some_and(|found| *found == *file);
            continue;
        }
        // Advice quotes the program as it would be.
        is_here &= !line.starts_with("help:");
        let Some((number, quoted)) = line.split_once(" |").filter(|_| is_here) else {
            continue;
        };
        let Ok(number) = number.parse::<usize>() else {
            continue;
        };
        let quoted = quoted.strip_prefix(' ').unwrap_or(quoted).trim_end();
        let found = number.checked_sub(1).and_then(|at| lines.get(at));
        if found.is_none_or(|found| found.trim_end() != quoted) {
            wrong.push(number);
        }
    }
    wrong
}

#[test]
fn planted_texts_of_other_programs_are_found() {
    let program = "use a::B;\n\n#[parallel(x)]\nstruct C;\n";
    let text = |number: usize| {
        format!(
            "error: no\n --> tests/derive/c.rs:{number}:3\n  |\n{number} | #[parallel(x)]\n  |   ^\n"
        )
    };
    let wrong = |text: &str| misquoted("c", text, program);
    assert_eq!(wrong(&text(3)), Vec::<usize>::new());
    assert_eq!(wrong(&text(4)), [4]);
    assert_eq!(wrong(&text(9)), [9]);
    let advice = "help: so\n  |\n3 | #[parallel(y)]\n";
    assert_eq!(wrong(&(text(3) + advice)), Vec::<usize>::new());
    let elsewhere = "note: here\n --> src/other.rs\n  |\n 4 | fn f() {}\n";
    assert_eq!(wrong(elsewhere), Vec::<usize>::new());
}
