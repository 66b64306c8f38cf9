//! Ranks on `Cuda` against plain Flex, several of them on one NVIDIA GPU.
//!
//! ```text
//! cargo test -p promises --features cuda --test cuda -- --ignored
//! ```

use burn_dist::DeviceMesh;
use burn_dist::backend::Cuda;

mod devices;

one_thread::one_thread!();

fn mesh(axes: &str) -> DeviceMesh {
    let mesh = DeviceMesh::builder().axes(&axes.parse().expect("axes"));
    mesh.backend::<Cuda>()
        .build()
        .expect("a device: install NVIDIA's driver and the CUDA toolkit (NVRTC)")
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn a_decoder_trains_as_on_flex() {
    devices::a_decoder_trains(mesh);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn float8_trains_as_on_ranks_of_flex() {
    devices::float8_trains(mesh);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn attention_is_that_of_flex() {
    devices::attention_is_that_of_flex(mesh);
}
