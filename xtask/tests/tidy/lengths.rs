//! How long files are.

use crate::workspace::{packages, read, rust_files};

/// No source file is longer.
const LINES_MAX: usize = 1300;
/// Longer files are named in the output.
const LINES_LONG: usize = 400;

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
