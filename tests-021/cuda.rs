//! `Dist<Cuda>` against plain Flex, with several ranks on one NVIDIA GPU, and with one GPU each.
//!
//! ```text
//! cargo test -p promises-021 --features cuda --test cuda -- --ignored
//! ```

use burn::backend::Autodiff;
use burn_dist::backend::{Cuda, CudaDevice};
use burn_dist::launch::World;
use burn_dist::mesh::MeshShape;
use burn_dist::mesh::{GpuTransport, Reduction};
use burn_dist::{DeviceMesh, DeviceMeshBuilder, Dist, ParallelizeWith};

#[path = "cuda/faults.rs"]
mod faults;
#[path = "ops/harness.rs"]
mod harness;
#[path = "ops/linalg.rs"]
mod linalg;
#[path = "training/net.rs"]
mod net;
#[path = "../tests/ops/nn.rs"]
mod nn;
#[path = "cuda/processes.rs"]
mod processes;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "devices/suite.rs"]
mod suite;
use promises::weights;

one_thread::one_thread!();

/// CUDA's functions are within a few units in the last place, like those of WGSL; see the CUDA C++ Programming Guide,
/// appendix on mathematical functions. Products may be contracted with the sums that follow, which rounds once instead
/// of twice.
const SUITE: harness::Suite = harness::Suite {
    meshes: &["", "dp=2", "fsdp=2,tp=2"],
    plain: "fsdp=2,tp=2",
    placed: harness::on_one_device,
    exceptions: &[("matmul_f64", "CubeCL multiplies no matrices of f64")],
    slack: 10.0,
    // CubeCL rounds the factors of products to tf32, by 2^-11 of each: what is added up here, some 5 products of
    // numbers up to 1, once or twice, is off by up to 5 * 2 * 2^-11 = 500 * 1e-5 in each.
    products: (
        &["cov", "matmul_chain", "rotary", "second_use_after_read"],
        1000.0,
    ),
    target: "-p promises-021 --features cuda --test cuda -- --ignored",
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
fn a_run_goes_on_from_a_checkpoint() {
    device();
    suite::checkpoints::<Cuda>();
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn a_transformer_trains() {
    device();
    suite::training::<Cuda>(&["", "fsdp=2", "tp=2", "fsdp=2,tp=2", "dp=2,fsdp=2"], 5);
}

/// A GPU whose kernels do not get their parameters by value is refused where the mesh is built.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability below 7.0, as `cargo xtask cuda` has one"]
fn a_gpu_that_is_too_old_is_refused() {
    let mesh = DeviceMesh::builder().axis("dp", 2);
    let error = mesh
        .devices(&[CudaDevice::new(0), CudaDevice::new(0)])
        .build();
    let error = error.expect_err("a GPU that is too old").to_string();
    assert!(
        error.contains("compute capability is 6.1") && error.contains("need 7.0"),
        "{error}"
    );
}

/// The same with a GPU for each rank.
const SEVERAL: harness::Suite = harness::Suite {
    meshes: &["dp=2", "fsdp=2,tp=2", "dp=2,fsdp=2,tp=2"],
    plain: "dp=2,fsdp=2,tp=2",
    placed: on_gpus,
    ..SUITE
};

/// Gives each of so many ranks a GPU of its own.
fn on_gpus(builder: DeviceMeshBuilder, ranks: usize) -> DeviceMeshBuilder {
    let gpus: Vec<_> = (0..ranks).map(CudaDevice::new).collect();
    builder.devices(&gpus)
}

/// A mesh whose ranks have a GPU each.
fn gpus(mesh: &str) -> DeviceMeshBuilder {
    let shape: MeshShape = mesh.parse().expect("a mesh");
    let builder = DeviceMesh::builder().axes(&shape).scatter_bytes_min(0);
    on_gpus(builder, shape.num_ranks())
}

/// The losses of a few steps of a small network.
fn losses(mesh: DeviceMeshBuilder) -> Vec<f64> {
    losses_on(&mesh.build().expect("a mesh"))
}

fn losses_on(mesh: &DeviceMesh) -> Vec<f64> {
    // Eight GPUs in software take minutes for five.
    let steps = if mesh.shape().num_ranks() > 4 { 2 } else { 5 };
    net::train::<Autodiff<Dist<Cuda>>>(&mesh.device(), steps, |net| {
        net.parallelize_with(mesh.shape(), &net::plan())
            .expect("a plan")
    })
}

#[test]
#[ignore = "needs 2 NVIDIA GPUs and NCCL"]
fn data_moves_and_is_reduced_between_gpus() {
    device();
    let gpus = [CudaDevice::new(0), CudaDevice::new(1)];
    suite::across_devices::<Cuda>(&gpus);
    for reduction in [Reduction::InOrder, Reduction::Fast] {
        suite::across_devices_by::<Cuda>(&gpus, GpuTransport::Nccl, reduction);
    }
    suite::across_devices_by::<Cuda>(&gpus, GpuTransport::Host, Reduction::InOrder);
}

#[test]
#[ignore = "needs 2 NVIDIA GPUs and NCCL"]
fn gpus_that_copy_or_talk_with_nccl_train_as_through_the_host() {
    device();
    for mesh in ["fsdp=2", "tp=2", "dp=2"] {
        let host = train_as_through_the_host(mesh);
        let fast = losses(gpus(mesh).reduction(Reduction::Fast));
        net::close(&fast, &host, mesh);
    }
}

/// Fails unless a mesh has the same losses by each transport, and returns them.
fn train_as_through_the_host(mesh: &str) -> Vec<f64> {
    let by = |transport| losses(gpus(mesh).gpu_transport(transport));
    let host = by(GpuTransport::Host);
    assert!(host.last() < host.first(), "nothing was learned: {host:?}");
    assert_eq!(by(GpuTransport::Auto), host, "{mesh}");
    assert_eq!(by(GpuTransport::Nccl), host, "{mesh}");
    host
}

#[test]
#[ignore = "needs 4 NVIDIA GPUs and NCCL"]
fn four_gpus_train_on_two_axes_as_through_the_host() {
    device();
    train_as_through_the_host("fsdp=2,tp=2");
}

#[test]
#[ignore = "needs 8 NVIDIA GPUs and NCCL"]
fn eight_gpus_train_on_three_axes_as_through_the_host() {
    device();
    train_as_through_the_host("dp=2,fsdp=2,tp=2");
}

/// Each process is a thread with a world of its own, and finds out from the others which GPU is whose.
#[test]
#[ignore = "needs 2 NVIDIA GPUs and NCCL"]
fn processes_with_a_gpu_each_train_as_one_process() {
    device();
    let one = losses(gpus("fsdp=2"));
    std::thread::scope(|scope| {
        let processes: Vec<_> = World::simulated(2)
            .into_iter()
            .map(|world| scope.spawn(|| losses(gpus("fsdp=2").world(world))))
            .collect();
        for process in processes {
            assert_eq!(process.join().expect("no process panics"), one);
        }
    });
}

macro_rules! families {
    ($suite:ident, $needs:literal: $($family:ident)*) => {
        $(
            #[test]
            #[ignore = $needs]
            fn $family() {
                super::device();
                harness::run::<Autodiff<Dist<Cuda>>>(&$suite, $family::table(), $family::table());
            }
        )*
    };
}

mod families {
    use super::*;

    families! { SUITE, "needs an NVIDIA GPU: run with --ignored": linalg nn reduce }
}

mod families_on_gpus {
    use super::*;

    families! { SEVERAL, "needs 8 NVIDIA GPUs": nn }
}
