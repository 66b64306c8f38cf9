//! Inner backends beside `burn_flex::Flex`, by feature: burn-cubecl's, without burn-fusion around it.
//!
//! It is one backend for all runtimes, and devices say which: `DeviceMesh::builder().backend::<Wgpu>().devices(..)`.

pub use burn_cubecl::CubeDevice;
#[cfg(feature = "cuda")]
pub use burn_cuda::CudaDevice;
#[cfg(feature = "wgpu")]
pub use burn_wgpu::WgpuDevice;

/// NVIDIA GPUs.
#[cfg(feature = "cuda")]
pub type Cuda = burn_cubecl::CubeBackend;

/// GPUs through Vulkan, Metal, DX12 or WebGPU.
#[cfg(feature = "wgpu")]
pub type Wgpu = burn_cubecl::CubeBackend;
