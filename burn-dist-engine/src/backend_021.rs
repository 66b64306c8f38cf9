//! Inner backends beside `burn_flex::Flex`, by feature.
//!
//! They are burn-wgpu's and burn-cuda's without burn-fusion: `Dist<B>` takes `burn::backend::Wgpu` and `Cuda` too, but
//! with burn-fusion 0.21 around them some programs on several ranks got other values than on one device.

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
