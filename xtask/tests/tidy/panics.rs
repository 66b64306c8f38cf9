//! Calls of the standard library that panic where the system says no: programs say so, or go on.

use crate::workspace::{packages, sources};

/// What panics, and what to write instead.
const PANICS: [(&str, &str); 2] = [
    ("thread::spawn(", "`thread::Builder` gives the error"),
    (
        "println!(",
        "whoever reads it may have closed it: `writeln!`, and what its error means",
    ),
];

/// Small programs that show something else, and what is only run by developers.
const EXEMPT: [&str; 12] = [
    "tests/lines/",
    "tests/programs/",
    "examples/clip/",
    "examples/custom_op/",
    "examples/minimal-021/",
    "examples/minimal/",
    "examples/moe/",
    "examples/swap-021/",
    "examples/swap/",
    "xtask/",
    "dev/conformance/src/",
    "burn-dist-gpu/src/streams/machine/",
];

#[test]
fn what_the_system_refuses_is_no_panic() {
    let root = crate::workspace::workspace();
    let mut wrong = Vec::new();
    for package in packages() {
        for (path, code) in sources(&package.join("src")) {
            let short = path.strip_prefix(&root).unwrap_or(&path);
            if EXEMPT.iter().any(|exempt| short.starts_with(exempt)) {
                continue;
            }
            for (call, instead) in PANICS {
                // Bars and the like have methods of that name.
                let calls = code.match_indices(call);
                let is_call = |(at, _): (usize, &str)| !code[..at].ends_with('.');
                if calls.into_iter().any(is_call) {
                    wrong.push(format!("{}: {call}...): {instead}", short.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
