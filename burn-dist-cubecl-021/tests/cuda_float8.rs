//! Kernels and engines of float8 on an NVIDIA GPU, against the reference.
//!
//! ```text
//! cargo test -p burn-dist-cubecl-021 --features cuda --test cuda_float8 -- --ignored
//! ```

use burn_dist_cubecl::Element;
use burn_dist_cubecl::cuda::{Call, device, engines, linear, quantized, transposed};
use burn_dist_cubecl::float8::{self, Form, Operand, Tiles};
use burn_dist_kernels::cuda::engine::Device;
use burn_dist_kernels::cuda::product::{Out, Product, Scales};
use burn_dist_kernels::cuda::quantize::{self, Shared};
use burn_dist_kernels::cuda::reference::{Operands, Sums};
use burn_dist_kernels::float8::reference::{decode, encode};
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;

#[path = "../../burn-dist-cubecl/tests/float8/suite.rs"]
mod suite;

const FORMS: [Form; 2] = [Form::Bytes, Form::Grid];

/// What speaks to the first GPU, which is named.
///
/// # Panics
/// Without one, with what to do about it.
fn gpu() -> (ComputeClient<CudaRuntime>, Device) {
    let open = || {
        let number = CudaDevice::default();
        (
            CudaRuntime::client(&number),
            device(&number).expect("the driver knows its device"),
        )
    };
    let found = std::thread::spawn(open).join();
    let (client, device) = found.unwrap_or_else(|_| {
        panic!("no device for this backend: install NVIDIA's driver and the CUDA toolkit (NVRTC)")
    });
    println!("{device:?}");
    (client, device)
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn casts() {
    suite::casts(&gpu().0, &FORMS);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn scales() {
    suite::scales(&gpu().0);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn tensors() {
    suite::tensors(&gpu().0, &FORMS);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn specials() {
    suite::specials(&gpu().0, &FORMS);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn random_tensors() {
    suite::random_tensors(&gpu().0, &FORMS, 64);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn products() {
    suite::products(
        &gpu().0,
        &FORMS,
        &[Element::F32, Element::F16, Element::Bf16],
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn products_of_specials() {
    suite::products_of_specials(&gpu().0, &FORMS);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn folds() {
    suite::folds(&gpu().0);
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn transpositions() {
    let (client, _) = gpu();
    for (rows, columns) in [
        (16, 16),
        (128, 128),
        (144, 16),
        (16, 400),
        (272, 1168),
        (4096, 2064),
    ] {
        let bytes: Vec<u8> = (0..rows * columns)
            .map(|i| (i * 131 + i / 251) as u8)
            .collect();
        let handle = client.create_from_slice(&bytes);
        let out = transposed(&client, &handle, [rows, columns]).unwrap();
        let found = client.read_one(out).unwrap();
        let expected = (0..rows * columns).map(|i| bytes[i % rows * columns + i / rows]);
        assert!(found.iter().copied().eq(expected), "{rows} x {columns}");
    }
}

fn upload(client: &ComputeClient<CudaRuntime>, operands: &Operands) -> Call {
    let floats = |values: &Vec<f32>| client.create_from_slice(bytemuck::cast_slice(values));
    Call {
        client: client.clone(),
        values: operands
            .values
            .each_ref()
            .map(|values| client.create_from_slice(values)),
        scales: operands.scales.each_ref().map(floats),
        bias: operands
            .product
            .bias
            .then(|| client.create_from_slice(&operands.bias_bytes())),
    }
}

const FORMATS: [[Fp8; 2]; 4] = [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3], [E5M2, E5M2]];
const SCALES: [[Scales; 2]; 6] = [
    [Scales::Tensor, Scales::Tensor],
    [Scales::Row, Scales::Row],
    [Scales::Tensor, Scales::Row],
    [Scales::Tile, Scales::Block],
    [Scales::Tile, Scales::BlockOfColumn],
    [Scales::TileOfColumn, Scales::TileOfColumn],
];

/// An engine, all that it supports: sizes that fill tiles, end inside of them, and of one tile and many.
fn computes_the_reference(engine: &'static str) {
    let (client, device) = gpu();
    let mut wrong = Vec::new();
    let mut num_computed = 0;
    for (m, n, k) in [
        (256, 128, 128),
        (16, 16, 16),
        (304, 272, 400),
        (1040, 144, 1168),
    ] {
        for formats in FORMATS {
            for scales in SCALES {
                let mut reference = None;
                for (out, bias) in [
                    (Out::BF16, true),
                    (Out::F16, false),
                    (Out::F32, false),
                    (Out::F32, true),
                ] {
                    let product = Product {
                        m,
                        n,
                        k,
                        formats,
                        scales,
                        out,
                        bias,
                    };
                    let operands = Operands::pseudo_random(product);
                    let call = upload(&client, &operands);
                    let Ok(made) = engines().run_with(engine, &device, &product, &call) else {
                        continue;
                    };
                    num_computed += 1;
                    let reference = reference.get_or_insert_with(|| operands.reference());
                    let checked = match client.read_one(made) {
                        Ok(found) => operands.check_with(reference, &found, Sums::TensorCores),
                        Err(error) => Err(format!("{error:?}")),
                    };
                    wrong.extend(checked.err());
                }
            }
        }
    }
    println!("{engine}: {num_computed} products");
    assert!(
        wrong.is_empty(),
        "{} of {num_computed} products:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

macro_rules! engines_compute_the_reference {
    ($($engine:ident)*) => {
        $(
            #[test]
            #[ignore = "needs an NVIDIA GPU: run with --ignored"]
            fn $engine() {
                super::computes_the_reference(stringify!($engine));
            }
        )*

        #[test]
        fn every_engine_is_tested() {
            let tested = [$(stringify!($engine)),*];
            assert_eq!(super::engines().names(), tested);
        }
    };
}

mod engines_compute_the_reference {
    engines_compute_the_reference! { wgmma cublaslt mma cubecl }
}

/// Rows, columns and terms of large products, like `256x512x512`: fewer than [`LARGE`] for a device that is slow.
const LARGE_PRODUCTS: &str = "FLOAT8_LARGE_PRODUCTS";
const LARGE: [usize; 3] = [2048, 4096, 4096];

/// Returns the size of large products.
fn large() -> [usize; 3] {
    let Ok(text) = std::env::var(LARGE_PRODUCTS) else {
        return LARGE;
    };
    let sizes = text.split('x').map(str::parse);
    let sizes = sizes.collect::<Result<Vec<usize>, _>>().ok();
    let sizes = sizes.and_then(|sizes| sizes.try_into().ok());
    sizes.unwrap_or_else(|| panic!("{LARGE_PRODUCTS}: three sizes, like 256x512x512, not {text}"))
}

/// An error that changes from run to run is a race.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn large_products_have_the_same_bits_each_time() {
    let (client, device) = gpu();
    let [m, n, k] = large();
    let mut num_repeated = 0;
    for scales in SCALES {
        let (formats, out) = ([E4M3, E5M2], Out::BF16);
        let product = Product {
            m,
            n,
            k,
            formats,
            scales,
            out,
            bias: false,
        };
        let call = upload(&client, &Operands::pseudo_random(product));
        let Ok(name) = engines().choose(&device, &product) else {
            continue;
        };
        let run = || {
            client
                .read_one(engines().run_with(name, &device, &product, &call).unwrap())
                .unwrap()
        };
        let first = run();
        for _ in 0..4 {
            assert!(run() == first, "{name}: {product}");
        }
        num_repeated += 1;
    }
    assert!(num_repeated > 0, "no engine takes products of {m}x{n}x{k}");
}

/// None falls back: the preferred one passes when it is tried out.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn the_preferred_engine_is_used() {
    let (client, device) = gpu();
    for scales in SCALES {
        for formats in FORMATS {
            let product = Product {
                m: 256,
                n: 256,
                k: 256,
                formats,
                scales,
                out: Out::BF16,
                bias: true,
            };
            let Ok(preferred) = engines().choose(&device, &product) else {
                continue;
            };
            let call = upload(&client, &Operands::pseudo_random(product));
            let (_, used) = engines().run(&device, &product, &call).unwrap();
            assert_eq!(used, preferred, "{product}");
        }
    }
}

/// Operands as they lie or by columns, turned round where an engine wants it: as CubeCL's kernel, which takes them as
/// they are.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn operands_as_they_lie() {
    let (client, device) = gpu();
    let (m, n, k) = (272, 144, 400);
    let values = |[rows, columns]: [usize; 2]| {
        let bytes = (0..rows * columns).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8 & 0xb7);
        client.create_from_slice(&bytes.collect::<Vec<u8>>())
    };
    let one = client.create_from_slice(&1.0f32.to_ne_bytes());
    for are_last_inner in [[true, false], [true, true], [false, false]] {
        let shape = |side: usize| match are_last_inner[side] {
            true => [[m, n][side], k],
            false => [k, [m, n][side]],
        };
        let stored = [values(shape(0)), values(shape(1))];
        let operands = [0, 1].map(|side: usize| Operand {
            values: &stored[side],
            scales: &one,
            tiles: Tiles {
                count: 1,
                height: shape(side)[0],
                width: shape(side)[1],
                tile_height: Tiles::ALL,
                tile_width: Tiles::ALL,
            },
            format: E4M3,
            is_last_inner: are_last_inner[side],
        });
        let plain = float8::product(&client, operands, None, Form::Bytes, Element::F32);
        let plain = suite::words(&client, &plain, m * n);
        let turned = [0, 1].map(|side| transposed(&client, &stored[side], shape(side)).unwrap());
        for are_turned in [[false, false], [true, false], [false, true], [true, true]] {
            let operands = [0, 1].map(|side: usize| Operand {
                values: if are_turned[side] {
                    &turned[side]
                } else {
                    &stored[side]
                },
                ..operands[side]
            });
            let (made, engine) =
                linear::product(&client, &device, operands, are_turned, None, Element::F32);
            let made = suite::words(&client, &made, m * n);
            // Terms are up to 0.9375 squared; a sum is off by what tensor cores lose of it (`Sums::TensorCores`).
            let bound = 0.88 * k as f32 * 132.0 / 8192.0;
            for (plain, made) in plain.iter().zip(made) {
                let (plain, made) = (f32::from_bits(*plain), f32::from_bits(made));
                assert!(
                    (plain - made).abs() <= bound,
                    "{engine}, {are_turned:?}: {plain} and {made}"
                );
            }
        }
    }
}

/// The device's own cast: all values of bf16 and f16, and every boundary of rounding in f32 with its neighbours; both
/// ways round.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored"]
fn casts_by_the_devices_instruction() {
    let (client, _) = gpu();
    for format in [E4M3, E5M2] {
        let all_16: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut finite: Vec<f32> = (0..0x80).map(|bits| decode(format, bits)).collect();
        finite.retain(|value| value.is_finite());
        finite.sort_by(f32::total_cmp);
        let halfway = finite.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let around = finite.iter().copied().chain(halfway);
        let around = around.flat_map(|x| {
            [
                x.next_down(),
                x,
                x.next_up(),
                -x.next_down(),
                -x,
                -x.next_up(),
            ]
        });
        let specials = [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN_POSITIVE,
        ];
        let mut values: Vec<f32> = around.chain(specials).collect();
        values.resize(values.len().next_multiple_of(256), 0.0);
        let all_32: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        for (from, bytes) in [
            (Out::BF16, &all_16),
            (Out::F16, &all_16),
            (Out::F32, &all_32),
        ] {
            let columns = 16;
            let rows = bytes.len() / from.bytes() / columns;
            for scale in [1.0f32, 0.37, 2f32.powi(30)] {
                let shared = Shared::Rows(Scales::Tensor);
                let kernel = quantize::Kernel {
                    from,
                    format,
                    shared,
                    as_is: true,
                    transposed: true,
                };
                let input = client.create_from_slice(bytes);
                let scales = client.create_from_slice(&scale.to_ne_bytes());
                let made = quantized(&client, kernel, &input, &scales, [rows, columns]).unwrap();
                let [as_is, transposed] = made.map(|made| client.read_one(made.unwrap()).unwrap());
                for (i, bytes) in bytes.chunks(from.bytes()).enumerate() {
                    let product = from.value(bytes) * scale;
                    let expected = encode(format, product);
                    // Of what is no number, the sign is nobody's.
                    let ignored = if product.is_nan() { 0x80 } else { 0 };
                    let found = [as_is[i], transposed[i % columns * rows + i / columns]];
                    let found = found.map(|found| found | ignored);
                    assert_eq!(found, [expected | ignored; 2], "{product:e} in {format}");
                }
            }
        }
    }
}
