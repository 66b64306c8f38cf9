//! Parts of Burn that a later line of Burn has otherwise, and the files that alone may name them.

use crate::text::without_text;
use crate::workspace::{read, rust_files, workspace};

/// The crates that touch Burn's backend.
const CRATES: [&str; 3] = ["burn-dist-engine", "burn-dist-ops", "burn-dist-door"];

/// The file that knows the fields of `TensorData`, which are private from Burn 0.22 on: others use its accessors, and
/// `TensorData::from_bytes`.
const DATA: &str = "burn-dist-door/src/data.rs";

#[test]
fn what_changes_with_burn_is_named_in_seams_alone() {
    let root = workspace();
    let mut files = Vec::new();
    for name in CRATES {
        rust_files(&root.join(name), &mut files);
    }
    let mut wrong = Vec::new();
    for file in files {
        let short = file.strip_prefix(&root).unwrap_or(&file);
        let code = without_text(&read(&file));
        if !short.starts_with(DATA) && opens_data(&code) {
            wrong.push(format!(
                "{} opens TensorData by its fields: use TensorData::from_bytes, and DataParts of {DATA}",
                short.display()
            ));
        }
        if has_word(&code, "BasicOps") {
            wrong.push(format!(
                "{} names BasicOps, which is Burn's own: write a kernel for each kind beside `kinds.rs`",
                short.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Returns true if `code` makes a `TensorData`, or takes one apart, by the names of its fields.
fn opens_data(code: &str) -> bool {
    code.match_indices("TensorData").any(|(at, name)| {
        let after = code[at + name.len()..].trim_start();
        // A path before the name belongs to it.
        let path = |c: char| c == ':' || crate::text::is_word(c);
        let before = code[..at].trim_end_matches(path).trim_end();
        let of_path = &code[before.len()..at];
        let is_whole = of_path.trim_start().is_empty() || of_path.ends_with("::");
        // What follows a result type or the type of an `impl` is a body.
        let before_word = before.rsplit(|c| !crate::text::is_word(c)).next();
        let is_body = before.ends_with("->") || matches!(before_word, Some("for" | "impl"));
        is_whole && after.starts_with('{') && !is_body
    })
}

/// Returns true if a whole word of `code` is `word`.
fn has_word(code: &str, word: &str) -> bool {
    crate::text::words(code).any(|other| other == word)
}

#[test]
fn literals_and_patterns_are_no_bodies() {
    let found = |code: &str| opens_data(&without_text(code));
    assert!(found("let data = TensorData { bytes, shape, dtype };"));
    assert!(found(
        "let burn_backend::TensorData { bytes, .. } = data else {"
    ));
    assert!(found("push(TensorData{ bytes })"));
    assert!(!found("fn floats() -> TensorData { TensorData::new() }"));
    assert!(!found("fn floats() -> burn_backend::TensorData {\n}"));
    assert!(!found("impl DataParts for TensorData {"));
    assert!(!found("struct MyTensorData { bytes: Bytes }"));
    assert!(!found("// TensorData { bytes }"));
    assert!(!found("-> Option<TensorData> {"));
}
