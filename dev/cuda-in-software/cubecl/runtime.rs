//! CubeCL 0.10's own tests of a runtime, instantiated as `cubecl-cuda` does for itself: a suite that nobody here wrote.

mod tests {
    pub type TestRuntime = cubecl_cuda::CudaRuntime;

    pub use half::{bf16, f16};

    cubecl_core::testgen_all!(f32: [f16, bf16, f32, f64], i32: [i8, i16, i32, i64], u32: [u8, u16, u32, u64]);
    cubecl_std::testgen!();
    cubecl_std::testgen_tensor_identity!([f16, bf16, f32, u32]);
    cubecl_std::testgen_quantized_view!(f16);
}

/// What Burn does not ask CubeCL for, and its own tests leave out.
mod staging {
    use super::tests::TestRuntime;
    use cubecl_common::bytes::{AllocationProperty, Bytes};
    use cubecl_core::Runtime;

    #[test]
    fn numbers_go_to_the_device_through_locked_memory() {
        let client = TestRuntime::client(&Default::default());
        let numbers: Vec<f32> = (0_u8..200).map(f32::from).collect();
        let mut bytes = Bytes::from_elems(numbers.clone());
        client.staging(std::iter::once(&mut bytes), false);
        assert!(matches!(bytes.property(), AllocationProperty::Pinned));
        let read = client.read_one_unchecked(client.create(bytes));
        let number = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        let found: Vec<f32> = read.chunks(4).map(number).collect();
        assert_eq!(found, numbers);
    }
}
