//! What burn-dist promises on Burn 0.21: of what has code of its own there, and of what is there alone. What planner and
//! ranks do is tested on the current line (`tests`); that both lines have one plan and the same losses, in `tests/lines`.
//!
//! One program: each of its own would compile Burn's generic code once more. What is built with other features too, or
//! needs a GPU, is in programs of its own beside this one.

mod attention;
mod default_mesh;
mod hf;
mod loops;
mod misuse;
mod pipeline;
mod resume;
mod threads;

use std::process::Command;

use promises::{transformer, weights};

one_thread::one_thread_per_process!();

/// Returns what runs the ignored test `name` in a process of its own.
fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    // On one thread, a test's name and the first line that it prints would be one line.
    command.env("RUST_TEST_THREADS", "2");
    command
}

/// Runs a child; returns what it prints, and whether it succeeds.
fn outcome(mut child: Command) -> (String, bool) {
    let output = child.output().expect("the child runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.success())
}

/// Runs the ignored test `name` in a process of its own; returns what it prints.
fn in_a_process(name: &str) -> String {
    let (text, success) = outcome(child(name));
    assert!(success, "{text}");
    assert!(text.contains("1 passed"), "no test `{name}`: {text}");
    text
}
