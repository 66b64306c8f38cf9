//! Marks of work that is left to do.

use crate::workspace::{packages, sources};

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
