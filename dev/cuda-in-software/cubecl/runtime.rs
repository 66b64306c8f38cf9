//! CubeCL 0.10's own tests of a runtime, instantiated as `cubecl-cuda` does for itself: a suite that nobody here wrote.

mod tests {
    pub type TestRuntime = cubecl_cuda::CudaRuntime;

    pub use half::{bf16, f16};

    cubecl_core::testgen_all!(f32: [f16, bf16, f32, f64], i32: [i8, i16, i32, i64], u32: [u8, u16, u32, u64]);
    cubecl_std::testgen!();
    cubecl_std::testgen_tensor_identity!([f16, bf16, f32, u32]);
    cubecl_std::testgen_quantized_view!(f16);
}
