//! Regions on whatever adapter wgpu finds; Mesa's lavapipe, which runs on any CPU, is enough.
//!
//! ```text
//! cargo test -p burn-dist-cubecl --features wgpu --test wgpu_regions
//! ```

use burn_dist_cubecl::Client;

#[path = "regions/suite.rs"]
mod suite;

/// What speaks to the device.
///
/// # Panics
/// Without a device, with what to do about it.
fn client() -> impl Client {
    let found = std::thread::spawn(|| cubecl::Device::Wgpu(Default::default()).client()).join();
    found.unwrap_or_else(|_| {
        panic!(
            "no device for this backend: install a Vulkan driver; `apt-get install mesa-vulkan-drivers` brings \
             lavapipe, which needs no GPU"
        )
    })
}

#[test]
fn exact_instructions_are_the_hosts() {
    suite::exact_instructions_are_the_hosts(&client());
}

#[test]
fn nothing_is_simplified() {
    suite::nothing_is_simplified(&client());
}

#[test]
fn functions_are_near_the_hosts() {
    suite::functions_are_near_the_hosts(&client());
}

#[test]
fn powers_are_near_the_hosts() {
    suite::powers_are_near_the_hosts(&client());
}

#[test]
fn casts_are_the_hosts() {
    suite::casts_are_the_hosts(&client());
}

#[test]
fn long_sums_are_the_hosts() {
    suite::long_sums_are_the_hosts(&client());
}

#[test]
fn random_regions_are_the_hosts() {
    suite::random_regions_are_the_hosts(&client(), 100);
}

#[test]
fn random_numbers_are_the_hosts() {
    suite::random_numbers_are_the_hosts(&client());
}

#[test]
fn random_draws_are_the_hosts() {
    suite::random_draws_are_the_hosts(&client(), 60);
}

#[test]
fn one_region_equals_one_for_each_instruction() {
    suite::one_region_equals_one_for_each_instruction(&client(), 30);
}

#[test]
fn what_has_no_kernel_is_named() {
    suite::what_has_no_kernel_is_named();
}
