//! What programs may do: each in any order of work that the seed chooses.

use cuda_in_software::{
    Gpu, add_one, devices, filled, floats, follow, kernel, launch, new_stream, read, shape,
};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// `0, 1, 2, ...`
fn ascending(count: usize) -> Vec<f32> {
    (0..count).map(|at| at as f32).collect()
}

#[test]
fn bytes_go_there_and_back() {
    Gpu::open(0);
    let values = ascending(1000);
    assert_eq!(read(filled(&values), 1000), Ok(values));
}

#[test]
fn a_kernel_runs() {
    Gpu::open(0);
    let (from, to) = (filled(&ascending(10_000)), floats(10_000));
    launch(add_one(), shape(40, 256), null_mut(), &[from, to, 10_000]).expect("a launch");
    assert_eq!(read(to, 10_000), Ok(ascending(10_001)[1..].to_vec()));
}

#[test]
fn streams_wait_for_events() {
    Gpu::open(0);
    let kernel = add_one();
    let streams = [new_stream(), new_stream(), new_stream()];
    let (mut from, mut to) = (filled(&ascending(512)), floats(512));
    for step in 0..30 {
        let (stream, next) = (streams[step % 3], streams[(step + 1) % 3]);
        launch(kernel, shape(2, 256), stream, &[from, to, 512]).expect("a launch");
        follow(stream, next).expect("an event");
        (from, to) = (to, from);
    }
    // SAFETY: the stream is there.
    unsafe { result::stream::synchronize(streams[0]) }.expect("no fault");
    assert_eq!(read(from, 512), Ok(ascending(542)[30..].to_vec()));
}

#[test]
fn memory_of_a_stream_lives_as_long_as_its_work() {
    Gpu::open(0);
    let (kernel, stream) = (add_one(), new_stream());
    let mut out = vec![0.0_f32; 256];
    // SAFETY: the stream orders all of it.
    unsafe {
        let from = result::malloc_async(stream, 1024).expect("memory");
        let to = result::malloc_async(stream, 1024).expect("memory");
        result::memcpy_htod_async(from, &ascending(256), stream).expect("a copy");
        launch(kernel, shape(1, 256), stream, &[from, to, 256]).expect("a launch");
        result::free_async(from, stream).expect("freed");
        result::memcpy_dtoh_async(&mut out, to, stream).expect("a copy");
        result::free_async(to, stream).expect("freed");
        result::stream::synchronize(stream).expect("no fault");
    }
    assert_eq!(out, ascending(257)[1..]);
}

#[test]
fn threads_of_a_block_meet() {
    Gpu::open(0);
    let text = r#"
    extern "C" __global__ void sum(const float* from, float* to) {
        extern __shared__ __align__(16) float part[];
        part[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
        for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        }
        if (threadIdx.x == 0) to[blockIdx.x] = part[0];
    }"#;
    let (from, to) = (filled(&ascending(1024)), floats(4));
    let mut shape = shape(4, 256);
    shape.shared = 1024;
    launch(
        kernel(text, "sum").expect("a kernel"),
        shape,
        null_mut(),
        &[from, to],
    )
    .expect("a launch");
    let sums = ascending(1024)
        .chunks(256)
        .map(|part| part.iter().sum())
        .collect();
    assert_eq!(read(to, 4), Ok(sums));
}

#[test]
fn the_name_of_a_kernel_may_be_a_macro() {
    Gpu::open(0);
    let text = r#"
    #define NAME seven
    extern "C" __global__ void NAME(float* to) { to[threadIdx.x] = 7; }"#;
    let to = floats(2);
    launch(
        kernel(text, "seven").expect("a kernel"),
        shape(1, 2),
        null_mut(),
        &[to],
    )
    .expect("a launch");
    assert_eq!(read(to, 2), Ok(vec![7.0; 2]));
}

#[test]
fn lanes_of_a_warp_exchange() {
    Gpu::open(0);
    let text = r#"
    extern "C" __global__ void lanes(float* to) {
        float mine = threadIdx.x, sum = mine;
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(-1, sum, d);
        float up = __shfl_up_sync(-1, mine, 1), down = __shfl_down_sync(-1, mine, 1), of = __shfl_sync(-1, mine, 5);
        unsigned odd = __ballot_sync(-1, threadIdx.x % 2);
        float all[6] = {sum, up, down, of, float(odd == 0xaaaaaaaau), float(__all_sync(-1, mine >= 32))};
        for (int i = 0; i < 6; i++) to[threadIdx.x * 6 + i] = all[i];
    }"#;
    let to = floats(64 * 6);
    launch(
        kernel(text, "lanes").expect("a kernel"),
        shape(1, 64),
        null_mut(),
        &[to],
    )
    .expect("a launch");
    let found = read(to, 64 * 6).expect("floats");
    for (thread, of) in found.chunks(6).enumerate() {
        let (lane, base) = (thread % 32, thread / 32 * 32);
        let sum: usize = (base..base + 32).sum();
        let up = if lane == 0 { thread } else { thread - 1 };
        let down = if lane == 31 { thread } else { thread + 1 };
        let last = usize::from(base == 32);
        let wanted = [sum, up, down, base + 5, 1, last].map(|value| value as f32);
        assert_eq!(of, wanted, "{thread}");
    }
}

#[test]
fn atomic_functions_lose_nothing() {
    Gpu::open(0);
    let text = r#"
    extern "C" __global__ void count(float* to) {
        atomicAdd(to, 1.0f);
        atomicMax(reinterpret_cast<unsigned*>(to + 1), threadIdx.x);
    }"#;
    let to = filled(&[0.0, 0.0]);
    launch(
        kernel(text, "count").expect("a kernel"),
        shape(64, 128),
        null_mut(),
        &[to],
    )
    .expect("a launch");
    assert_eq!(read(to, 2), Ok(vec![8192.0, f32::from_bits(127)]));
}

#[test]
fn halves_round_once() {
    Gpu::open(0);
    let text = r#"
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void halves(float* to) {
        to[0] = float(__half(2049.0f));
        to[1] = float(__half(0.1f) * __half(3.0f));
        to[2] = float(__nv_bfloat16(1.00390625f));
        to[3] = float(__nv_bfloat16(1.01171875f));
        to[4] = float(__hmax(__half(-1.0f), __half(2.0f)));
        to[5] = float(__half(70000.0f));
    }"#;
    let to = floats(6);
    launch(
        kernel(text, "halves").expect("a kernel"),
        shape(1, 1),
        null_mut(),
        &[to],
    )
    .expect("a launch");
    // 2049 and 1 + 2^-8 lie half way: to the even one. 0.1 is 0.0999755859375 in half precision, and three times that
    // rounds to 0.2998046875.
    let wanted = vec![2048.0, 0.299_804_7, 1.0, 1.015_625, 2.0, f32::INFINITY];
    assert_eq!(read(to, 6), Ok(wanted));
}

#[test]
fn words_let_streams_wait() {
    Gpu::open(0);
    let (writer, reader) = (new_stream(), new_stream());
    let kernel = add_one();
    let (from, to, word) = (filled(&ascending(256)), floats(256), filled(&[0.0]));
    let done = floats(256);
    // SAFETY: streams and memory are there.
    unsafe {
        sys::cuStreamWaitValue32_v2(reader, word, 7, 0)
            .result()
            .expect("a wait");
        launch(kernel, shape(1, 256), reader, &[to, done, 256]).expect("a launch");
        launch(kernel, shape(1, 256), writer, &[from, to, 256]).expect("a launch");
        sys::cuStreamWriteValue32_v2(writer, word, 7, 0)
            .result()
            .expect("a write");
        result::stream::synchronize(reader).expect("no fault");
    }
    assert_eq!(read(done, 256), Ok(ascending(258)[2..].to_vec()));
}

unsafe extern "C" fn count(of: *mut c_void) {
    // SAFETY: the test hands the counter over, and waits for the stream.
    unsafe { &*of.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn callbacks_run_in_their_place() {
    Gpu::open(0);
    let (stream, counter) = (new_stream(), AtomicU32::new(0));
    // SAFETY: the counter lives until the stream has come to its end.
    unsafe {
        for _ in 0..3 {
            let of = (&raw const counter).cast_mut().cast();
            result::stream::launch_host_function(stream, count, of).expect("a callback");
        }
        result::stream::synchronize(stream).expect("no fault");
    }
    assert_eq!(counter.load(Ordering::SeqCst), 3);
}

/// A copy into locked memory is late: who does not wait for it reads what was there.
#[test]
fn work_is_late() {
    Gpu::open(0);
    let (stream, from) = (new_stream(), filled(&ascending(256)));
    let late = (0..50).filter(|_| {
        // SAFETY: the memory is as long as the copy, and the stream is waited for before it is freed.
        unsafe {
            let page = result::malloc_host(1024, 0).expect("memory").cast::<f32>();
            let out = std::slice::from_raw_parts_mut(page, 256);
            out.fill(-1.0);
            result::memcpy_dtoh_async(out, from, stream).expect("a copy");
            let early = page.add(1).read_volatile();
            result::stream::synchronize(stream).expect("no fault");
            assert_eq!(page.add(1).read_volatile(), 1.0);
            result::free_host(page.cast()).expect("freed");
            early == -1.0
        }
    });
    assert!(late.count() > 25);
}

#[test]
fn a_text_that_is_wrong_is_named() {
    Gpu::open(0);
    let wrong = kernel(
        "extern \"C\" __global__ void f(float* x) { x[0] = nothing; }",
        "f",
    );
    assert!(wrong.expect_err("an error").contains("nothing"));
}

#[test]
fn devices_copy_from_each_other() {
    if devices() < 2 {
        return;
    }
    let other = Gpu::open(1);
    let from = filled(&ascending(100));
    Gpu::open(0);
    let to = floats(100);
    // SAFETY: both contexts are there.
    unsafe {
        let peer = result::primary_ctx::retain(other.number).expect("a context");
        let enabled = sys::cuCtxEnablePeerAccess(peer, 0).result();
        assert!(matches!(
            enabled,
            Ok(())
                | Err(cudarc::driver::DriverError(
                    sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                ))
        ));
        result::memcpy_dtod_async(to, from, 400, null_mut()).expect("a copy");
    }
    assert_eq!(read(to, 100), Ok(ascending(100)));
}

/// Threads wait for a barrier's phase, and not for each other: the last to arrive is the one that has read.
#[test]
fn barriers_have_phases() {
    Gpu::open(0);
    let text = r#"
    #include <cuda/barrier>
    extern "C" __global__ void phases(const float* from, float* to) {
        __shared__ cuda::barrier<cuda::thread_scope_block> full;
        __shared__ float values[64];
        if (threadIdx.x == 0) init(&full, blockDim.x);
        __syncthreads();
        for (unsigned step = 0; step < 3; step++) {
            cuda::memcpy_async(&values[threadIdx.x], from + 64 * step + threadIdx.x, 4, full);
            if (step < 2) full.arrive_and_wait();
            else {
                auto token = full.arrive();
                full.wait(std::move(token));
            }
            to[64 * step + threadIdx.x] = values[63 - threadIdx.x];
            __syncthreads();
        }
    }"#;
    let (from, to) = (filled(&ascending(192)), floats(192));
    let phases = kernel(text, "phases").expect("a kernel");
    launch(phases, shape(1, 64), null_mut(), &[from, to]).expect("a launch");
    let turned = ascending(192);
    let turned = turned
        .chunks(64)
        .flat_map(|part| part.iter().rev().copied());
    assert_eq!(read(to, 192), Ok(turned.collect()));
}
