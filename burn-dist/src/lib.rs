//! Distributed N-D parallelism for [Burn](https://burn.dev), as a backend decorator.

// The derive names this crate by its outside path, also in the crate's own tests.
extern crate self as burn_dist;

pub mod comm;
pub mod flight;
pub mod launch;
pub mod layout;
pub mod mesh;
pub mod optim;
pub mod parallel;
pub mod plan;
pub mod record;
pub mod rules;
pub mod run;

#[doc(hidden)]
pub use parallel::private as __private;
pub use parallel::{
    DTensor, LocalParts, MeshBackend, Parallelize, ParallelizeWith, Plan, ProcessLocal, explain,
};
pub use plan::{Accumulation, Checkpoint, Float, Offload, Precision, Reshard, ShardStrategy};
pub use record::{DeviceMesh, DeviceMeshBuilder, Dist, InputPolicy, MeshDevice, MeshReport};

/// Inner backends beside `burn_flex::Flex`, by feature.
///
/// They are burn-wgpu's and burn-cuda's without burn-fusion: `Dist<B>` takes `burn::backend::Wgpu` and `Cuda` too, but with burn-fusion 0.21 around them some
/// programs on several ranks got other values than on one device.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub mod backend {
    #[cfg(feature = "cuda")]
    pub use burn_cuda::CudaDevice;
    #[cfg(feature = "wgpu")]
    pub use burn_wgpu::WgpuDevice;

    /// NVIDIA GPUs.
    #[cfg(feature = "cuda")]
    pub type Cuda = burn_cubecl::CubeBackend<burn_cubecl::cubecl::cuda::CudaRuntime, f32, i32, u8>;

    /// GPUs through Vulkan, Metal, DX12 or WebGPU.
    #[cfg(feature = "wgpu")]
    pub type Wgpu = burn_wgpu::CubeBackend<burn_wgpu::WgpuRuntime, f32, i32, u32>;
}

/// The programs of the README, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
