//! Words of names and of documentation: one word for a thing, and a first line that says what the thing is.
//!
//! Names are those of types, functions, modules, constants and macros, taken apart into words. Documentation is `///` and
//! `//!`; code in it, in fences or between backticks, is not looked at.

use std::collections::BTreeMap;

use crate::falling::only_falls;
use crate::text::{is_word, without_text};
use crate::workspace::{packages, read, rust_files, workspace};

/// Words that stand for too many things, each with what to write.
const BANNED: [(&str, &str); 9] = [
    ("airborne", "in flight, or sent and not yet received"),
    ("born", "made, created"),
    ("given", "passed, set, named; the argument's name"),
    ("ground", "what it is made of"),
    ("meeting", "match, call, rendezvous"),
    ("said", "set, stated, asked for"),
    ("told", "notified, named, distinguished"),
    ("way", "path, direction, method, transport"),
    ("ways", "paths, directions, methods, transports"),
];

/// Names that say nothing of a type.
const BANNED_TYPES: [&str; 2] = ["Place", "Common"];

/// Openings of a paragraph after which a reader still does not know what the thing is.
const RIDDLES: [&str; 7] = ["Those", "That", "Of", "As", "What", "Whether", "Who"];

/// How many banned words and how many riddles there are in files and folders that were written before this test; none
/// are in any other file. These numbers only fall.
const EXCEPTIONS: &[(&str, usize, usize)] = &[("burn-dist-plan", 46, 139)];

#[test]
fn names_and_documentation_use_one_word_for_a_thing() {
    let root = workspace();
    let mut files = Vec::new();
    for package in packages() {
        rust_files(&package.join("src"), &mut files);
    }
    let mut found: BTreeMap<&str, [Vec<String>; 2]> = BTreeMap::new();
    for (path, ..) in EXCEPTIONS {
        assert!(root.join(path).exists(), "{path} has moved");
        found.insert(path, Default::default());
    }
    for file in files {
        let source = read(&file);
        let short = file.strip_prefix(&root).unwrap_or(&file);
        let paths = EXCEPTIONS.iter().map(|(path, ..)| *path);
        let covers = paths.filter(|path| short.starts_with(path));
        let path = covers
            .max_by_key(|path| path.len())
            .unwrap_or("other files");
        let [words, riddles] = found.entry(path).or_default();
        let at = |(line, text): (usize, String)| format!("  {}:{line}: {text}", short.display());
        words.extend(banned(&source).into_iter().map(at));
        riddles.extend(openings(&source).into_iter().map(at));
    }
    let mut wrong = Vec::new();
    for (path, [words, riddles]) in found {
        let exception = EXCEPTIONS.iter().find(|(other, ..)| *other == path);
        let (words_allowed, riddles_allowed) = exception.map_or((0, 0), |(_, w, r)| (*w, *r));
        for (what, found, allowed) in [
            ("banned words", words, words_allowed),
            ("riddles that open a paragraph", riddles, riddles_allowed),
        ] {
            let what = format!("{what} in {path}");
            wrong.extend(only_falls(&what, found.len(), allowed, &found.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Returns the banned words of a source file, each with its line.
fn banned(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in prose(source) {
        for word in text.split(|c: char| !c.is_alphanumeric()) {
            let word = word.to_lowercase();
            if let Some((word, instead)) = BANNED.iter().find(|(banned, _)| **banned == word) {
                found.push((line, format!("`{word}`: {instead}")));
            }
        }
    }
    for (line, kind, name) in names(source) {
        let words = parts(&name);
        let banned = BANNED
            .iter()
            .find(|(banned, _)| words.iter().any(|word| word == banned));
        if let Some((_, instead)) = banned {
            found.push((line, format!("{kind} `{name}`: {instead}")));
        }
        if BANNED_TYPES.contains(&name.as_str()) && kind != "mod" {
            found.push((line, format!("{kind} `{name}`: what is it a place of?")));
        }
    }
    found.sort();
    found
}

/// Returns the riddles that open a paragraph of the documentation, each with its line.
fn openings(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut next = None;
    for (line, text) in prose(source) {
        let follows = next == Some(line);
        // An empty line ends a paragraph.
        next = (!text.trim().is_empty()).then_some(line + 1);
        let word: String = text
            .trim_start()
            .chars()
            .take_while(|c| is_word(*c))
            .collect();
        if !follows && RIDDLES.contains(&word.as_str()) {
            found.push((line, text.trim().to_owned()));
        }
    }
    found
}

/// Returns the lines of documentation, code blanked out, with their numbers from 1.
fn prose(source: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let (mut in_code, mut in_span) = (false, false);
    for (index, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let text = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let Some(text) = text else {
            (in_code, in_span) = (false, false);
            continue;
        };
        if text.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        // Pieces between backticks are code, which may go on in the next line.
        let mut prose = String::new();
        for (at, piece) in text.split('`').enumerate() {
            if at > 0 {
                in_span = !in_span;
                prose.push('`');
            }
            prose.push_str(if in_span { "" } else { piece });
        }
        in_span &= !text.trim().is_empty();
        lines.push((index + 1, prose));
    }
    lines
}

/// Returns the line, the keyword and the name of every item that a source file defines.
fn names(source: &str) -> Vec<(usize, &'static str, String)> {
    const KINDS: [&str; 9] = [
        "struct", "enum", "union", "trait", "type", "fn", "mod", "const", "static",
    ];
    let code = without_text(source);
    let words: Vec<&str> = code
        .split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .collect();
    let mut found = Vec::new();
    for pair in words.windows(2) {
        if let Some(kind) = KINDS.iter().find(|kind| **kind == pair[0]) {
            let item = format!("{kind} {}", pair[1]);
            let line = source.lines().position(|line| line.contains(&item));
            found.push((line.map_or(0, |index| index + 1), *kind, pair[1].to_owned()));
        }
    }
    found
}

/// Returns the words of a name in lower case: `WayOut` and `way_out` are `way`, `out`.
fn parts(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && after_lower) || words.is_empty() {
            words.push(String::new());
        }
        after_lower = c.is_lowercase();
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[test]
fn banned_words_are_found_in_names_and_documentation() {
    let source = "/// Finds the way `given` by the caller.\nfn way_out(given: u8) {}\nstruct Place;\nstruct MeetingPoint;\n\
        // This is the way.\nfn always() { \"told\"; }\n/// ```\n/// fn told() {}\n/// ```\nenum PlaceInLine {}\n";
    let lines: Vec<usize> = banned(source).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [1, 2, 3, 4]);
}

#[test]
fn openings_are_those_of_paragraphs() {
    let source = "/// What it is.\n/// What follows is no opening.\n///\n/// Of old.\nstruct A;\n//! Theirs.\n\
        /// Ofen.\n";
    let lines: Vec<usize> = openings(source).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [1, 4]);
}
