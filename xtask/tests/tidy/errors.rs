//! Errors of the libraries: a program whose `main` returns one prints its `Debug`, which says what the error says.

use crate::text::words;
use crate::workspace::{packages, sources};

/// Implements `Debug` so.
const MACRO: &str = "debug_by_message!";

#[test]
fn debug_of_every_error_is_its_message() {
    let (mut wrong, mut found) = (Vec::new(), 0);
    for package in packages() {
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("burn-dist") {
            continue;
        }
        for (path, code) in sources(&package.join("src")) {
            for error in errors(&code) {
                found += 1;
                if !has_message(&code, &error) {
                    wrong.push(format!("{}: {error}", path.display()));
                }
            }
        }
    }
    assert!(found > 40, "{found} errors: they are no longer found");
    assert!(
        wrong.is_empty(),
        "write `burn_dist_mesh::{MACRO}(..)` below each, in place of deriving `Debug`:\n{}",
        wrong.join("\n")
    );
}

/// Returns the names of the types that are made errors: by a derive, or by an impl.
fn errors(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices("#[derive(") {
        let rest = &code[at..];
        let Some((derived, item)) = rest.split_once(")]") else {
            continue;
        };
        if words(derived).any(|word| word == "Error") {
            let mut words = words(item).filter(|word| !word.is_empty());
            let is_item = |word: &&str| ["enum", "struct", "union"].contains(word);
            words.find(is_item);
            names.extend(words.next().map(str::to_string));
        }
    }
    for (at, _) in code.match_indices("Error for ") {
        let before = code[..at]
            .rsplit(['\n', '}', ';'])
            .next()
            .unwrap_or_default();
        let is_trait = ["impl ", "impl<"]
            .iter()
            .any(|start| before.trim_start().starts_with(start))
            && !before.contains("From<")
            && before.ends_with([':', ' ']);
        if is_trait {
            let name = words(&code[at + "Error for ".len()..]).next();
            names.extend(name.map(str::to_string));
        }
    }
    names
}

fn has_message(code: &str, error: &str) -> bool {
    let mut uses = code.match_indices(MACRO);
    uses.any(|(at, _)| {
        let inside = code[at + MACRO.len()..].trim_start_matches('(');
        inside.split(')').next().map(str::trim) == Some(error)
    })
}

#[test]
fn planted_errors_are_found() {
    let code = "
        #[derive(Clone, thiserror::Error)]
        #[error(\"\")]
        pub struct One { }
        debug_by_message!(One);
        #[derive(Debug, Error)]
        pub(crate) enum Two { }
        impl std::error::Error for Three {}
        impl From<IoError> for Four {}
        impl<T> Error for Five<T> {}
        #[derive(Debug)] struct Six;
    ";
    assert_eq!(errors(code), ["One", "Two", "Three", "Five"]);
    let right = |error: &&str| has_message(code, error);
    assert_eq!(
        ["One", "Two", "Three"].iter().filter(|e| right(e)).count(),
        1
    );
}
