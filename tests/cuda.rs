//! Ranks on `Cuda` against plain Flex, several of them on one NVIDIA GPU.
//!
//! ```text
//! cargo test -p promises --features cuda --test cuda -- --ignored
//! ```

use burn_dist::DeviceMeshBuilder;
use burn_dist::backend::Cuda;

mod devices;
use devices::Devices;

one_thread::one_thread!();

const DEVICES: Devices = Devices {
    on: DeviceMeshBuilder::backend::<Cuda>,
    hint: "a device: install NVIDIA's driver and the CUDA toolkit (NVRTC)",
    // Products round both of their factors to tf32 first, by 2^-11 each, which is more than the order of sums does.
    tolerance: devices::SUMS * 2.0 / (1 << 11) as f32,
};

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn a_decoder_trains_as_on_flex() {
    devices::a_decoder_trains(DEVICES);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn regions_train_as_on_flex_and_to_the_bits_of_one_operation_after_the_other() {
    devices::regions_train(DEVICES);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn regions_draw_what_flex_does() {
    devices::regions_draw_what_flex_does(DEVICES);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn float8_trains_as_on_ranks_of_flex() {
    devices::float8_trains(DEVICES);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn attention_is_that_of_flex() {
    devices::attention_is_that_of_flex(DEVICES);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn parts_may_have_no_elements() {
    devices::parts_without_elements(DEVICES);
}
