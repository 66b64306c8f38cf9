//! What is recorded: by any number of threads, on one mesh at a time, for as long as the program runs.

#[path = "recording/kept.rs"]
mod kept;
#[path = "recording/length.rs"]
mod length;
#[path = "recording/meshes.rs"]
mod meshes;
#[path = "recording/reads.rs"]
mod reads;
#[path = "recording/slices.rs"]
mod slices;
#[path = "recording/threads.rs"]
mod threads;

use burn_dist::DeviceMesh;

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::parse(text).expect("a mesh")
}
