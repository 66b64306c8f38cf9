//! What burn-dist promises, through its public API, on ranks that are threads.
//!
//! One program: each of its own would compile Burn's generic code once more. What is built with other features too, or
//! needs MPI or a GPU, is in programs of its own beside this one.

mod async_tp;
mod attention;
mod batches;
mod chaos;
mod checkpoint;
mod context;
mod experts;
mod faults;
mod float8;
mod flops;
mod golden;
mod hf;
mod items;
mod layouts;
#[cfg(target_os = "linux")]
mod level;
mod loops;
mod memory;
mod mesh;
mod misuse;
mod nodes;
mod offload;
mod ops;
mod partial;
mod pipeline;
mod planned;
mod policies;
mod precision;
mod recording;
mod regions;
mod resume;
mod roles;
mod rows;
mod sharding;
mod timeline;
mod training;

use std::process::Command;

use promises::{llama, transformer, weights};

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
