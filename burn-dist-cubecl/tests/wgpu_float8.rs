//! Kernels of float8 on whatever adapter wgpu finds; Mesa's lavapipe, which runs on any CPU, is enough.
//!
//! ```text
//! cargo test -p burn-dist-cubecl --features wgpu
//! ```
//!
//! wgpu's devices have no bytes, and use values as f32; that words of four bytes have the same bits is tested here too.

use burn_dist_cubecl::float8::Form;
use burn_dist_cubecl::{Client, Element};

#[path = "float8/suite.rs"]
mod suite;

const FORMS: [Form; 2] = [Form::Grid, Form::Bytes];

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
fn casts() {
    suite::casts(&client(), &FORMS);
}

#[test]
fn scales() {
    suite::scales(&client());
}

#[test]
fn tensors() {
    suite::tensors(&client(), &FORMS);
}

#[test]
fn specials() {
    suite::specials(&client(), &FORMS);
}

#[test]
fn random_tensors() {
    suite::random_tensors(&client(), &FORMS, 64);
}

#[test]
fn products() {
    // WGSL has no bf16.
    suite::products(&client(), &FORMS, &[Element::F32, Element::F16]);
}

#[test]
fn products_of_specials() {
    suite::products_of_specials(&client(), &FORMS);
}

#[test]
fn folds() {
    suite::folds(&client());
}
