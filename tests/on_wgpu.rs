//! Ranks on `Wgpu` against plain Flex, on whatever adapter wgpu finds; Mesa's lavapipe, which runs on any CPU, is enough.
//!
//! ```text
//! cargo test -p promises --features wgpu --test on_wgpu
//! ```

use burn_dist::DeviceMeshBuilder;
use burn_dist::backend::Wgpu;

mod devices;
use devices::Devices;

one_thread::one_thread!();

const DEVICES: Devices = Devices {
    on: DeviceMeshBuilder::backend::<Wgpu>,
    hint: "a device: `apt-get install mesa-vulkan-drivers` brings lavapipe, which needs no GPU",
    // Sums of products are taken in another order, which moves a sum of `n` terms by `n` units of 2^-24 at most: `n` is
    // 256 in the longest.
    tolerance: devices::SUMS * 256.0 / (1 << 24) as f32,
};

#[test]
fn a_decoder_trains_as_on_flex() {
    devices::a_decoder_trains(DEVICES);
}

#[test]
fn regions_train_as_on_flex_and_to_the_bits_of_one_operation_after_the_other() {
    devices::regions_train(DEVICES);
}

#[test]
fn regions_draw_what_flex_does() {
    devices::regions_draw_what_flex_does(DEVICES);
}

#[test]
fn float8_trains_as_on_ranks_of_flex() {
    devices::float8_trains(DEVICES);
}

#[test]
fn attention_is_that_of_flex() {
    devices::attention_is_that_of_flex(DEVICES);
}

#[test]
fn parts_may_have_no_elements() {
    devices::parts_without_elements(DEVICES);
}
