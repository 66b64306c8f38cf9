//! `Dist<Wgpu>` against plain Flex, on whatever adapter wgpu finds; Mesa's lavapipe, which runs on any CPU, is enough.
//!
//! ```text
//! cargo test -p promises-021 --features wgpu --test on_wgpu
//! ```

use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use burn_dist::Dist;
use burn_dist::backend::{Wgpu, WgpuDevice};

#[path = "devices/float8.rs"]
mod float8;
#[path = "ops/harness.rs"]
mod harness;
#[path = "../tests/ops/index.rs"]
mod index;
#[path = "ops/linalg.rs"]
mod linalg;
#[path = "training/net.rs"]
mod net;
#[path = "../tests/ops/nn.rs"]
mod nn;
#[path = "ops/pointwise.rs"]
mod pointwise;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "devices/suite.rs"]
mod suite;
#[path = "ops/view.rs"]
mod view;
use promises::weights;

one_thread::one_thread!();

/// WGSL asks of a device that it rounds sums and products to the nearest float, and little of its other functions:
/// `exp` and `log` may be off by a few units in the last place (3 + 2 |x| for `exp`), division by 2.5, and powers and
/// hyperbolic functions inherit from those. Within -2 to 2, and divided by the slopes of the functions that follow,
/// that is less than ten times what the order of sums does.
/// <https://www.w3.org/TR/WGSL/#floating-point-accuracy>
const SUITE: harness::Suite = harness::Suite {
    meshes: &["", "dp=2", "fsdp=2,tp=2"],
    plain: "fsdp=2,tp=2",
    placed: harness::on_one_device,
    exceptions: &[
        (
            "inverse_trigonometry",
            "WGSL lets acos and asin be as far off as atan2, 4096 units in the last place",
        ),
        ("exponentials_of_doubles", "SPIR-V's exp takes no f64"),
        (
            "masks_broadcast",
            "burn-cubecl's mask_where computes only as many elements as its first operand has, in the gradient fewer \
             than all",
        ),
        (
            "gelu",
            "the gradient is that of Burn's tanh approximation, where Flex's is exact",
        ),
        (
            "int_powers",
            "burn-cubecl takes them in f32, where 5^4 is 624.9999",
        ),
    ],
    slack: 10.0,
    products: (&[], 10.0),
    target: "-p promises-021 --features wgpu --test on_wgpu",
};

fn device() -> WgpuDevice {
    suite::device_or_fail::<Wgpu>(
        "install a Vulkan driver; `apt-get install mesa-vulkan-drivers` brings lavapipe, which needs no GPU",
    )
}

#[test]
fn data_moves() {
    device();
    suite::moves::<Wgpu>(&["tp=2", "tp=3", "fsdp=2,tp=2"]);
}

#[test]
fn data_is_reduced() {
    suite::reductions::<Wgpu>(&["tp=2", "tp=3"], &device());
}

#[test]
fn parts_of_single_ranks() {
    device();
    suite::parts::<Wgpu>();
}

#[test]
fn a_run_goes_on_from_a_checkpoint() {
    device();
    suite::checkpoints::<Wgpu>();
}

#[test]
fn ranks_on_several_devices() {
    // The default device and the CPU's: two devices to wgpu, also where they are one.
    suite::across_devices::<Wgpu>(&[device(), WgpuDevice::Cpu]);
}

#[test]
fn a_transformer_trains() {
    device();
    suite::training::<Wgpu>(&["", "fsdp=2", "fsdp=2,tp=2"], 3);
}

#[test]
fn float8_trains_as_on_the_host() {
    device();
    float8::trains_as_on_the_host::<Wgpu>();
}

#[test]
fn float8_has_the_bits_of_the_host() {
    device();
    float8::has_the_bits_of_the_host::<Wgpu>();
}

/// What is left out above is no fault of meshes; where this fails on lavapipe, an exception can go. A GPU may be more
/// exact.
#[test]
fn exceptions_are_the_backends_own() {
    let device = device();
    let excepted = |name: &str| SUITE.exceptions.iter().any(|(case, _)| *case == name);
    let differ: Vec<_> = every_case()
        .into_iter()
        .zip(every_case())
        .filter(|(one, _)| excepted(one.name))
        .filter(|(one, alone)| {
            harness::backend_alone::<Autodiff<Wgpu>>(&SUITE, &device, one, alone).is_some()
        })
        .map(|(one, _)| one.name)
        .collect();
    let names: Vec<_> = SUITE.exceptions.iter().map(|(name, _)| *name).collect();
    assert_eq!(differ, names);
}

/// The cases of all families below.
fn every_case<B: AutodiffBackend>() -> Vec<harness::Case<B>> {
    [
        index::table,
        linalg::table,
        nn::table,
        pointwise::table,
        reduce::table,
        view::table,
    ]
    .into_iter()
    .flat_map(|table| table())
    .collect()
}

macro_rules! families {
    ($($family:ident)*) => {
        $(
            #[test]
            fn $family() {
                super::device();
                harness::run::<Autodiff<Dist<Wgpu>>>(&SUITE, $family::table(), $family::table());
            }
        )*
    };
}

mod families {
    use super::*;

    families! { index linalg nn pointwise reduce view }
}
