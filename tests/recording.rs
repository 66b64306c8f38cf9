//! What is recorded: by any number of threads, on one mesh at a time, for as long as the program runs.

#[path = "recording/default_mesh.rs"]
mod default_mesh;
#[path = "recording/length.rs"]
mod length;
#[path = "recording/meshes.rs"]
mod meshes;
#[path = "recording/reads.rs"]
mod reads;
#[path = "recording/threads.rs"]
mod threads;

use std::process::Command;

use burn::backend::{Autodiff, Flex};
use burn_dist::{DeviceMesh, Dist};

type B = Dist<Flex>;
type A = Autodiff<B>;

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::parse(text).expect("a mesh")
}

/// Runs the ignored test `name` of this module in a process of its own; returns what it prints.
fn in_a_process(name: &str) -> String {
    let name = &format!("recording::{name}");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .output()
        .expect("the child runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no test `{name}`: {text}");
    text
}
