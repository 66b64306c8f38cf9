//! `Dist<Cuda>` against plain Flex, with several ranks on one NVIDIA GPU.
//!
//! ```text
//! cargo test -p burn-dist --features cuda --test cuda -- --ignored
//! ```

use burn::backend::Autodiff;
use burn_dist::Dist;
use burn_dist::backend::{Cuda, CudaDevice};

#[path = "ops/harness.rs"]
mod harness;
#[path = "ops/linalg.rs"]
mod linalg;
#[path = "training/net.rs"]
mod net;
#[path = "ops/nn.rs"]
mod nn;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "devices/suite.rs"]
mod suite;

/// CUDA's functions are within a few units in the last place, like those of WGSL; see the CUDA C++ Programming Guide, appendix on mathematical functions.
/// Products may be contracted with the sums that follow, which rounds once instead of twice.
const SUITE: harness::Suite = harness::Suite {
    meshes: &["", "dp=2", "fsdp=2,tp=2"],
    plain: "fsdp=2,tp=2",
    exceptions: &[],
    slack: 10.0,
    target: "-p burn-dist --features cuda --test cuda -- --ignored",
};

fn device() -> CudaDevice {
    suite::device_or_fail::<Cuda>("install NVIDIA's driver and the CUDA toolkit (NVRTC)")
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn data_moves() {
    device();
    suite::moves::<Cuda>(&["tp=2", "tp=4", "fsdp=2,tp=2"]);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn data_is_reduced() {
    suite::reductions::<Cuda>(&["tp=2", "tp=4"], &device());
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn parts_of_single_ranks() {
    device();
    suite::parts::<Cuda>();
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn a_transformer_trains() {
    device();
    suite::training::<Cuda>(&["", "fsdp=2", "tp=2", "fsdp=2,tp=2", "dp=2,fsdp=2"], 5);
}

macro_rules! families {
    ($($family:ident)*) => {
        $(
            #[test]
            #[ignore = "needs an NVIDIA GPU: run with --ignored"]
            fn $family() {
                super::device();
                harness::run::<Autodiff<Dist<Cuda>>>(&SUITE, $family::table(), $family::table());
            }
        )*
    };
}

mod families {
    use super::*;

    families! { linalg nn reduce }
}
