//! Ranks on `Wgpu` against plain Flex, on whatever adapter wgpu finds; Mesa's lavapipe, which runs on any CPU, is enough.
//!
//! ```text
//! cargo test -p promises --features wgpu --test wgpu
//! ```

use burn_dist::DeviceMesh;
use burn_dist::backend::Wgpu;

mod devices;

one_thread::one_thread!();

fn mesh(axes: &str) -> DeviceMesh {
    let mesh = DeviceMesh::builder().axes(&axes.parse().expect("axes"));
    mesh.backend::<Wgpu>().build().expect(
        "a device: `apt-get install mesa-vulkan-drivers` brings lavapipe, which needs no GPU",
    )
}

#[test]
fn a_decoder_trains_as_on_flex() {
    devices::a_decoder_trains(mesh);
}

#[test]
fn float8_trains_as_on_ranks_of_flex() {
    devices::float8_trains(mesh);
}

#[test]
fn attention_is_that_of_flex() {
    devices::attention_is_that_of_flex(mesh);
}
