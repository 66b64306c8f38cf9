//! How fast products in float8 are on an NVIDIA GPU, and what is around them: casts and transpositions.
//!
//! ```text
//! cargo bench -p burn-dist-cubecl-021 --features cuda --bench gpu_gemm
//! ```
//!
//! Every figure has its ceiling, measured in the same run: a copy on the device for what moves bytes, cuBLASLt for
//! products. CubeCL's stream is timed by the clock of the host around many launches, cuBLASLt's by events. The last line
//! is JSON. Without a GPU it says so and ends.

use std::time::Instant;

use burn_dist_cubecl::cuda::{Call, cublaslt, device, engines, quantized, transposed};
use burn_dist_cubecl::float8::{self, Form, Tiles};
use burn_dist_cubecl::{Element, Elements};
use burn_dist_kernels::cuda::engine::Device;
use burn_dist_kernels::cuda::product::{Out, Product, Scales};
use burn_dist_kernels::cuda::quantize::{Kernel, Shared};
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::future::block_on;
use cubecl::prelude::*;
use cubecl::server::Handle;

type Client = ComputeClient<CudaRuntime>;

/// M, K, N as in `[M, K] x [K, N]`.
const SHAPES: [(usize, usize, usize); 3] =
    [(8192, 8192, 8192), (8192, 4096, 14336), (2048, 4096, 4096)];
const SCALES: [(&str, [Scales; 2]); 3] = [
    ("tensorwise", [Scales::Tensor; 2]),
    ("rowwise", [Scales::Row; 2]),
    ("blockwise", [Scales::Tile, Scales::Block]),
];
const ROUNDS: usize = 7;
const REPEATS: usize = 20;

fn main() {
    let open = || {
        let number = CudaDevice::default();
        (
            CudaRuntime::client(&number),
            device(&number).expect("the driver knows its device"),
        )
    };
    let Ok((client, device)) = std::thread::spawn(open).join() else {
        println!("not measured: there is no NVIDIA GPU here, or no driver or NVRTC for it");
        return;
    };
    println!("{device:?}");
    let mut figures = Vec::new();
    let copy = memory(&client, &device, &mut figures);
    for shape in SHAPES {
        products(&client, &device, shape, &mut figures);
    }
    layer(&client, &device, (8192, 4096, 14336), copy, &mut figures);
    let fields: Vec<String> = figures
        .iter()
        .map(|(name, value)| format!("\"{name}\":{value:.4}"))
        .collect();
    println!(
        "{{\"compute\":\"{}.{}\",{}}}",
        device.compute.0,
        device.compute.1,
        fields.join(",")
    );
}

/// The median of several rounds, of the seconds of one of many launches.
fn seconds(client: &Client, mut launch: impl FnMut()) -> f64 {
    let wait = || block_on(client.sync()).expect("the device does what it was told");
    launch();
    wait();
    let mut rounds = [0.0; ROUNDS].map(|_: f64| {
        let start = Instant::now();
        for _ in 0..REPEATS {
            launch();
        }
        wait();
        start.elapsed().as_secs_f64() / REPEATS as f64
    });
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// One scale for a matrix.
fn whole(rows: usize, columns: usize) -> Tiles {
    Tiles {
        count: 1,
        height: rows,
        width: columns,
        tile_height: Tiles::ALL,
        tile_width: Tiles::ALL,
    }
}

/// A cast of bf16 with one scale.
fn both_ways(format: Fp8) -> Kernel {
    Kernel {
        from: Out::BF16,
        format,
        shared: Shared::Rows(Scales::Tensor),
        as_is: true,
        transposed: true,
    }
}

/// Random bits that are numbers in float8 and in bf16.
fn random(client: &Client, bytes: usize) -> Handle {
    let values = (0..bytes).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8 & 0xb7);
    client.create_from_slice(&values.collect::<Vec<u8>>())
}

/// A bf16 tensor, as a copy and through the casts; returns the copy's bytes per second, read and written.
fn memory(client: &Client, device: &Device, figures: &mut Vec<(String, f64)>) -> f64 {
    let (rows, columns) = (16384, 16384);
    let elements = rows * columns;
    let input = Elements {
        handle: random(client, elements * 2),
        element: Element::Bf16,
    };
    let words = random(client, elements);
    let copied = seconds(client, || {
        drop(transposed(client, &words, [rows, columns]).expect("sizes"))
    });
    let copy = driver_copy(client, device, elements).expect("the driver copies");
    println!("copy on the device: {:.2} TB/s", copy * 1e-12);
    figures.push(("copy_TBs".into(), copy * 1e-12));
    let tiles = whole(rows, columns);
    let scales = client.create_from_slice(&1.0f32.to_ne_bytes());
    let mut show = |name: &str, bytes: usize, took: f64| {
        let fraction = bytes as f64 / took / copy;
        println!(
            "{name}: {:.2} TB/s, {fraction:.2} of a copy",
            bytes as f64 / took * 1e-12
        );
        figures.push((format!("{name}_of_copy"), fraction));
    };
    show("transpose", 2 * elements, copied);
    show(
        "amax",
        2 * elements,
        seconds(client, || drop(float8::amax(client, &input, tiles))),
    );
    let cast = seconds(client, || {
        drop(float8::quantize(
            client,
            &input,
            &scales,
            tiles,
            E4M3,
            Form::Bytes,
        ))
    });
    show("quantize", 3 * elements, cast);
    let both = || {
        quantized(
            client,
            both_ways(E4M3),
            &input.handle,
            &scales,
            [rows, columns],
        )
        .expect("sizes")
    };
    show(
        "quantize_both_ways",
        4 * elements,
        seconds(client, || drop(both())),
    );
    copy
}

/// Bytes per second, read and written, of the driver's copy.
fn driver_copy(client: &Client, device: &Device, bytes: usize) -> Option<f64> {
    let (from, to) = (random(client, bytes), client.empty(bytes));
    let at = |handle: &Handle| client.get_resource(handle.clone()).ok();
    let (from, to) = (at(&from)?, at(&to)?);
    block_on(client.sync()).ok()?;
    // SAFETY: both live until the copies are done, and CubeCL has nothing to do meanwhile.
    let took = unsafe {
        cublaslt::copy_seconds(
            device,
            to.resource().ptr,
            from.resource().ptr,
            bytes,
            REPEATS,
        )
    };
    took.ok().map(|took| 2.0 * bytes as f64 / took)
}

fn call(client: &Client, product: &Product) -> Call {
    let Product {
        m, n, k, scales, ..
    } = *product;
    let ones = |count: usize| client.create_from_slice(&1.0f32.to_ne_bytes().repeat(count));
    Call {
        client: client.clone(),
        values: [random(client, m * k), random(client, n * k)],
        scales: [ones(scales[0].count(m, k)), ones(scales[1].count(n, k))],
        bias: None,
    }
}

fn products(
    client: &Client,
    device: &Device,
    (m, k, n): (usize, usize, usize),
    figures: &mut Vec<(String, f64)>,
) {
    println!("{m} x {k} x {n}");
    let mut show = |name: String, product: &Product, took: Result<f64, String>| match took {
        Ok(took) => {
            println!("  {name}: {:.0} TFLOP/s", product.flops() / took * 1e-12);
            figures.push((
                format!("{m}x{k}x{n}_{name}_TFLOPs"),
                product.flops() / took * 1e-12,
            ));
        }
        Err(reason) => println!("  {name}: not measured: {reason}"),
    };
    let plain = Product {
        m,
        n,
        k,
        formats: [E4M3; 2],
        scales: [Scales::Tensor; 2],
        out: Out::BF16,
        bias: false,
    };
    for (name, is_bf16) in [("library_float8", false), ("library_bf16", true)] {
        show(
            name.into(),
            &plain,
            cublaslt::seconds(client, device, &plain, is_bf16, REPEATS),
        );
    }
    for (scaling, scales) in SCALES {
        let product = Product { scales, ..plain };
        let call = call(client, &product);
        for engine in engines().names() {
            let run = || engines().run_with(engine, device, &product, &call);
            let took = match run() {
                // Ten times as slow as a product in f32 would be: once is enough.
                Ok(_) if engine == "cubecl" => {
                    block_on(client.sync()).expect("the device does what it was told");
                    let start = Instant::now();
                    drop(run());
                    block_on(client.sync()).expect("the device does what it was told");
                    Ok(start.elapsed().as_secs_f64())
                }
                Ok(_) => Ok(seconds(client, || drop(run()))),
                Err(error) => Err(error.to_string()),
            };
            show(format!("{engine}_{scaling}"), &product, took);
        }
    }
}

/// Forward and backward of a linear layer, tensorwise, with all casts: against the three products in bf16.
fn layer(
    client: &Client,
    device: &Device,
    (m, k, n): (usize, usize, usize),
    copy: f64,
    figures: &mut Vec<(String, f64)>,
) {
    let tensor = |rows, columns| {
        (
            Elements {
                handle: random(client, rows * columns * 2),
                element: Element::Bf16,
            },
            [rows, columns],
        )
    };
    let (x, w, g) = (tensor(m, k), tensor(k, n), tensor(m, n));
    let cast = |(elements, [rows, columns]): &(Elements, [usize; 2]), format| {
        let amax = float8::amax(client, elements, whole(*rows, *columns));
        let scale = float8::scale(client, &amax, 1, format, false);
        let made = quantized(
            client,
            both_ways(format),
            &elements.handle,
            &scale,
            [*rows, *columns],
        );
        let [Some(values), Some(other)] = made.expect("sizes") else {
            unreachable!("both ways were asked for");
        };
        (values, other, scale)
    };
    let plain = Product {
        m,
        n,
        k,
        formats: [E4M3; 2],
        scales: [Scales::Tensor; 2],
        out: Out::BF16,
        bias: false,
    };
    let run = |product: Product, values: [&Handle; 2], scales: [&Handle; 2]| {
        let call = Call {
            client: client.clone(),
            values: values.map(Clone::clone),
            scales: scales.map(Clone::clone),
            bias: None,
        };
        engines().run(device, &product, &call).expect("an engine").1
    };
    let step = || {
        let ((x, x_t, x_scale), (w, w_t, w_scale), (g, g_t, g_scale)) =
            (cast(&x, E4M3), cast(&w, E4M3), cast(&g, E5M2));
        run(plain, [&x, &w_t], [&x_scale, &w_scale]);
        run(
            Product {
                n: k,
                k: n,
                formats: [E5M2, E4M3],
                ..plain
            },
            [&g, &w],
            [&g_scale, &w_scale],
        );
        run(
            Product {
                m: k,
                k: m,
                formats: [E4M3, E5M2],
                ..plain
            },
            [&x_t, &g_t],
            [&x_scale, &g_scale],
        )
    };
    let took = seconds(client, || {
        step();
    });
    // Read for the maximum, read for the cast, and written twice.
    let casts = 2.0 * 2.0 + 2.0;
    let ideal = casts * (m * k + k * n + m * n) as f64 / copy;
    println!(
        "linear layer {m} x {k} x {n}: {:.2} ms, casts at the speed of a copy {:.2} ms",
        took * 1e3,
        ideal * 1e3
    );
    let products = [
        plain,
        Product {
            n: k,
            k: n,
            ..plain
        },
        Product {
            m: k,
            k: m,
            ..plain
        },
    ];
    let bf16: Result<f64, String> = products
        .iter()
        .map(|product| cublaslt::seconds(client, device, product, true, REPEATS))
        .sum();
    match bf16 {
        Ok(bf16) => {
            println!(
                "  the same in bf16 by cuBLASLt: {:.2} ms, {:.2} times as long",
                bf16 * 1e3,
                bf16 / took
            );
            figures.push(("layer_gain_over_bf16".into(), bf16 / took));
        }
        Err(reason) => println!("  the same in bf16 by cuBLASLt: not measured: {reason}"),
    }
}
