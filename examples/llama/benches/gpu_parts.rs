//! What Burn's backend alone reaches on one NVIDIA GPU, without burn-dist: products, attention and elementwise work of
//! a 1b step, each beside the device's own copy. It tells what of a step's time is the backend's.
//!
//! ```text
//! cargo bench -p llama --features cuda,plain-cuda --bench gpu_parts
//! ```

use std::time::Instant;

use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Distribution, Tensor, activation};
use serde_json::json;

/// Returns the median seconds of one of several calls that the device runs back to back.
fn seconds<T>(device: &Device, mut call: impl FnMut() -> T) -> f64 {
    for _ in 0..3 {
        call();
    }
    device.sync().expect("the device answers");
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..8 {
                call();
            }
            device.sync().expect("the device answers");
            start.elapsed().as_secs_f64() / 8.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn random<const D: usize>(shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    let wide: Tensor<D> = Tensor::random(shape, Distribution::Normal(0.0, 1.0), device);
    wide.cast(dtype)
}

fn main() {
    let device = Device::cuda(0);
    let mut rows = Vec::new();
    let mut row = |name: String, seconds: f64, work: f64, unit: &str| {
        let rate = work / seconds / 1e12;
        println!("{name:<44} {:>9.3} ms {rate:>8.2} {unit}", seconds * 1e3);
        rows.push(json!({ "part": name, "ms": seconds * 1e3, "rate": rate, "unit": unit }));
    };
    for dtype in [DType::F32, DType::BF16] {
        let size = dtype.size() as f64;
        let x = random([8192, 8192], dtype, &device);
        let bytes = 2.0 * size * 8192.0 * 8192.0;
        row(
            format!("add a scalar, 8192 x 8192, {dtype:?}"),
            seconds(&device, || x.clone() + 1.0),
            bytes,
            "TB/s",
        );
        let y = random([8192, 8192], dtype, &device);
        row(
            format!("sum of two, 8192 x 8192, {dtype:?}"),
            seconds(&device, || x.clone() + y.clone()),
            1.5 * bytes,
            "TB/s",
        );
        row(
            format!("softmax, 8192 x 8192, {dtype:?}"),
            seconds(&device, || activation::softmax(x.clone(), 1)),
            bytes,
            "TB/s",
        );
        row(
            format!("mean along rows, 8192 x 8192, {dtype:?}"),
            seconds(&device, || x.clone().mean_dim(1)),
            bytes / 2.0,
            "TB/s",
        );
        for (m, k, n) in [
            (4096, 2048, 2048),
            (4096, 2048, 8192),
            (4096, 8192, 2048),
            (4096, 2048, 128_256),
            (8192, 8192, 8192),
        ] {
            let flops = 2.0 * m as f64 * k as f64 * n as f64;
            let (a, b) = (
                random([m, k], dtype, &device),
                random([k, n], dtype, &device),
            );
            let at = random([k, m], dtype, &device).transpose();
            let bt = random([n, k], dtype, &device).transpose();
            let name = |how: &str| format!("{m} x {k} x {n} {how}, {dtype:?}");
            row(
                name(""),
                seconds(&device, || a.clone().matmul(b.clone())),
                flops,
                "TFLOP/s",
            );
            row(
                name("turned right"),
                seconds(&device, || a.clone().matmul(bt.clone())),
                flops,
                "TFLOP/s",
            );
            row(
                name("turned left"),
                seconds(&device, || at.clone().matmul(b.clone())),
                flops,
                "TFLOP/s",
            );
        }
        let heads = || random([4, 32, 1024, 64], dtype, &device);
        let (q, k, v) = (heads(), heads(), heads());
        let flops = 4.0 * 4.0 * 32.0 * 1024.0 * 1024.0 * 64.0;
        for is_causal in [false, true] {
            let run = || {
                let options = AttentionModuleOptions {
                    is_causal,
                    ..Default::default()
                };
                attention(q.clone(), k.clone(), v.clone(), None, None, options)
            };
            row(
                format!("attention, causal {is_causal}, {dtype:?}"),
                seconds(&device, run),
                flops,
                "TFLOP/s",
            );
        }
        let scores = random([128, 1024, 64], dtype, &device);
        let keys = random([128, 64, 1024], dtype, &device);
        row(
            format!("scores 128 of 1024 x 64 x 1024, {dtype:?}"),
            seconds(&device, || scores.clone().matmul(keys.clone())),
            flops / 2.0,
            "TFLOP/s",
        );
    }
    println!("{}", json!({ "bench": "gpu_parts", "rows": rows }));
}
