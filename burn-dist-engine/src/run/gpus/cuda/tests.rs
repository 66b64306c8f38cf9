//! Where CubeCL's tensors are, on a GPU.
//!
//! ```text
//! cargo test -p burn-dist-engine --features cuda gpus::cuda -- --ignored
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, DType, Slice, TensorData};
use burn_ir::BackendIr;
use burn_std::future::block_on;

use super::super::settle;
use super::{CommError, CubeMemory, CudaDevice, Memory, Placed};
use crate::backend::Cuda;
use crate::mesh;
use crate::ops::execute::into_data;
use burn_dist_gpu::nccl::api::{Address, Gpu};
use burn_dist_gpu::nccl::driver;
use burn_dist_gpu::streams;
use burn_dist_gpu::streams::api::{FlagWait, Signals, Words};

fn done<T>(what: &str, result: Result<T, CommError>) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn memory(device: &CudaDevice) -> CubeMemory<Cuda> {
    CubeMemory(device.clone())
}

fn gpu() -> Arc<driver::Device> {
    let gpu = driver::open(0).expect("a GPU");
    gpu.attach().expect("a device");
    gpu
}

/// Tensors with a layout each, and their elements in row-major order.
fn layouts<B: BackendIr>(device: &B::Device) -> Vec<(&'static str, B::Handle, Vec<f32>)> {
    let tensor = |shape: [usize; 2]| {
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32).collect();
        B::float_from_data(TensorData::new(values, shape), device)
    };
    let at = |row: usize, column: usize, columns: usize| (row * columns + column) as f32;
    let cut = |rows: [usize; 2], columns: [usize; 2]| {
        let slices = [rows, columns].map(|[start, end]| Slice::from(start..end));
        let values = (rows[0]..rows[1])
            .flat_map(|row| (columns[0]..columns[1]).map(move |column| at(row, column, 8)));
        let values: Vec<f32> = values.collect();
        (B::float_slice(tensor([5, 8]), &slices), values)
    };
    let (rows, rows_values) = cut([2, 5], [0, 8]);
    let (block, block_values) = cut([1, 4], [3, 6]);
    let turned = B::float_swap_dims(tensor([5, 7]), 0, 1);
    let turned_values = (0..7).flat_map(|column| (0..5).map(move |row| at(row, column, 7)));
    let pitched_values = (0..35).map(|i| i as f32);
    [
        ("pitched", tensor([5, 7]), pitched_values.collect()),
        ("transposed", turned, turned_values.collect()),
        ("rows at an offset", rows, rows_values),
        ("a block at an offset", block, block_values),
        ("no rows", tensor([0, 2]), Vec::new()),
    ]
    .map(|(name, tensor, values)| (name, B::float_tensor_handle(tensor), values))
    .into()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

mod conformance;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tensors_of_any_layout_are_pinned_in_row_major_order() {
    let (gpu, device) = (gpu(), CudaDevice::new(0));
    for (name, handle, values) in layouts::<Cuda>(&device) {
        let pinned = memory(&device).pinned(handle, values.len(), mesh::DType::F32);
        let Placed { tensor, at, hold } = done(name, pinned);
        assert_eq!(at == Address(0), values.is_empty(), "{name}");
        done(name, settle::<Cuda>(&device));
        let mut found = vec![0; 4 * values.len()];
        // SAFETY: the tensor is held, and nothing that is queued uses it.
        unsafe { gpu.download(at, &mut found) }.expect("a copy");
        assert_eq!(found, bytes_of(&values), "{name}");
        drop((tensor, hold));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_written_to_fresh_memory_is_the_tensor() {
    let (gpu, device) = (gpu(), CudaDevice::new(0));
    let none = memory(&device).fresh(0, mesh::DType::F32);
    done("nothing", none);
    for elements in [1, 7, 1000] {
        let fresh = memory(&device).fresh(elements, mesh::DType::F32);
        let Placed {
            tensor: handle, at, ..
        } = done("fresh", fresh);
        done("fresh", settle::<Cuda>(&device));
        let values: Vec<f32> = (0..elements).map(|i| i as f32).collect();
        // SAFETY: the tensor is held, and nothing that is queued uses it.
        unsafe { gpu.upload(at, &bytes_of(&values)) }.expect("a copy");
        let data = block_on(into_data::<Cuda>(handle, [elements].into(), DType::F32));
        let data = data.expect("a tensor");
        assert_eq!(data, TensorData::new(values, [elements]));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_that_is_cleaned_up_goes_back_to_the_driver() {
    let device = CudaDevice::new(0);
    let client = done("a client", memory(&device).client());
    let reserved = || client.memory_usage().expect("an answer").bytes_reserved;
    let before = reserved();
    let bytes = 64 << 20;
    let buffer = client.empty(bytes);
    assert!(reserved() >= before + bytes as u64);
    drop(buffer);
    Cuda::memory_cleanup(&device);
    assert!(reserved() <= before);
}

/// A page of words, and a wait of CubeCL's stream for the second of them to be 1.
fn words(gpu: &Arc<driver::Device>) -> (Arc<dyn Signals>, Words, FlagWait) {
    let signals = streams::driver::signals(gpu).expect("a driver for CUDA 12.5 or later");
    let words = signals.words().expect("a page");
    let wait = FlagWait {
        word: words.at(1),
        value: 1,
        poison: words.at(0),
    };
    (signals, words, wait)
}

fn tensor(device: &CudaDevice) -> <Cuda as BackendIr>::Handle {
    let values = TensorData::new(vec![1.0_f32; 1 << 20], [1 << 20]);
    <Cuda as BackendIr>::float_tensor_handle(Cuda::float_from_data(values, device))
}

#[test]
#[ignore = "needs an NVIDIA GPU and a driver for CUDA 12.5 or later"]
fn cubecls_stream_waits_for_a_word_that_another_stream_sets() {
    let (gpu, device) = (gpu(), CudaDevice::new(0));
    let (signals, _, wait) = words(&gpu);
    let stream = gpu.stream().expect("a stream");
    let handle = tensor(&device);
    done("submit", memory(&device).submit());
    let event = signals.record_all().expect("an event");
    gpu.wait(stream, event).expect("a wait");
    gpu.forget(event);
    signals.write(stream, wait.word, 1).expect("a write");
    done("wait", memory(&device).wait(wait));
    let data = block_on(into_data::<Cuda>(handle, [1 << 20].into(), DType::F32));
    assert_eq!(data.expect("a tensor").num_elements(), 1 << 20);
}

#[test]
#[ignore = "needs an NVIDIA GPU and a driver for CUDA 12.5 or later"]
fn a_wait_of_cubecls_stream_ends_by_poison() {
    let (gpu, device) = (gpu(), CudaDevice::new(0));
    let (_, words, wait) = words(&gpu);
    let handle = tensor(&device);
    done("wait", memory(&device).wait(wait));
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        words.host[0].store(1, Ordering::SeqCst);
    });
    let data = block_on(into_data::<Cuda>(handle, [1 << 20].into(), DType::F32));
    assert_eq!(data.expect("a tensor").num_elements(), 1 << 20);
    assert_eq!(words.host[0].load(Ordering::SeqCst), 1, "it has waited");
}
