//! The text of CUDA kernels, compiled for the host: threads of a block are threads, and barriers, TMA and tensor cores
//! are emulated from their definitions (`tests/emulated/`). Loads come late and in any order. Built with the sanitizers
//! of addresses and of threads: a stage that is read before it is full, or filled before it is empty, is a data race.

use std::path::Path;

use burn_dist_kernels::cuda::product::{BLOCK, Out, Product, Scales};
use burn_dist_kernels::cuda::quantize::{self, Shared};
use burn_dist_kernels::cuda::reference::{Operands, Sums};
use burn_dist_kernels::cuda::wgmma::Kernel;
use burn_dist_kernels::cuda::{transpose, wgmma};
use burn_dist_kernels::float8::reference::encode;
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};

use host::{DEVICE, compile, run, words};

#[path = "emulated/host.rs"]
mod host;

const HOPPER: &str = include_str!("emulated/hopper.cpp");

fn check(program: &Path, product: Product, blocks: usize) {
    let operands = Operands::pseudo_random(product);
    let scales = &operands.scales;
    let mut input = words([blocks, scales[0].len(), scales[1].len()]);
    let info = Kernel::info(&product);
    input.extend(info.iter().flat_map(|word| word.to_le_bytes()));
    input.extend(operands.values.iter().flatten());
    let scales = scales.iter().flatten();
    input.extend(scales.flat_map(|scale| scale.to_le_bytes()));
    input.extend(operands.bias_bytes());
    let found = run(program, &input);
    operands.check(&found, Sums::F32).unwrap();
}

/// Tiles of all shapes, several to a block of threads; `(m, n, k, blocks)`.
const SHAPES: [(usize, usize, usize, usize); 5] = [
    (256, 128, 128, 1),
    (1, 16, 16, 1),
    (300, 144, 272, 2),
    (65, 272, 656, 1),
    (520, 32, 144, 1),
];

fn products(formats: [Fp8; 2], scales: [Scales; 2], out: Out, bias: bool, sanitizer: &str) {
    let of = |m, n, k| Product {
        m,
        n,
        k,
        formats,
        scales,
        out,
        bias,
    };
    let kernel = Kernel::of(&of(16, 16, 16)).unwrap();
    let name = format!("wgmma-{:?}-{}-{sanitizer}", scales[1], out.name());
    let parts = [
        DEVICE,
        &kernel.constants(),
        HOPPER,
        Kernel::BODY,
        include_str!("emulated/wgmma.cpp"),
    ];
    let program = compile(&name, &parts.join("\n"), sanitizer);
    for (m, n, k, blocks) in SHAPES {
        assert!(blocks <= Kernel::blocks(&of(m, n, k), 132));
        check(&program, of(m, n, k), blocks);
    }
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn wgmma_with_scales_of_tensors() {
    products(
        [E4M3, E4M3],
        [Scales::Tensor; 2],
        Out::BF16,
        true,
        "address,undefined",
    );
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn wgmma_with_scales_of_rows() {
    products(
        [E5M2, E4M3],
        [Scales::Row; 2],
        Out::F32,
        false,
        "address,undefined",
    );
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn wgmma_with_scales_of_blocks() {
    products(
        [E4M3, E4M3],
        [Scales::Tile, Scales::Block],
        Out::F16,
        true,
        "address,undefined",
    );
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn wgmma_with_scales_of_columns() {
    products(
        [E4M3, E5M2],
        [Scales::TileOfColumn; 2],
        Out::BF16,
        false,
        "address,undefined",
    );
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn wgmma_with_scales_of_blocks_of_columns() {
    let scales = [Scales::TileOfColumn, Scales::BlockOfColumn];
    products([E4M3, E4M3], scales, Out::F32, false, "address,undefined");
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn wgmma_has_no_data_race() {
    products(
        [E4M3, E4M3],
        [Scales::Tensor, Scales::Row],
        Out::BF16,
        false,
        "thread",
    );
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn transposition() {
    let parts = [
        DEVICE,
        &transpose::constants(),
        "#define __shared__ static",
        transpose::BODY,
        include_str!("emulated/transpose.cpp"),
    ];
    for sanitizer in ["address,undefined", "thread"] {
        let program = compile(
            &format!("transpose-{sanitizer}"),
            &parts.join("\n"),
            sanitizer,
        );
        for (rows, columns) in [(16, 16), (128, 128), (144, 16), (16, 400), (272, 160)] {
            let bytes: Vec<u8> = (0..rows * columns)
                .map(|i| (i * 131 + i / 251) as u8)
                .collect();
            let (info, blocks) = transpose::launch(rows, columns).unwrap();
            let mut input = words([blocks]);
            input.extend(info.to_le_bytes());
            input.extend(&bytes);
            let found = run(&program, &input);
            for (index, byte) in found.iter().enumerate() {
                let (column, row) = (index / rows, index % rows);
                assert_eq!(
                    *byte,
                    bytes[row * columns + column],
                    "[{row}, {column}] of {rows} x {columns}"
                );
            }
        }
    }
}

fn scale_at(shared: Shared, [rows, columns]: [usize; 2], row: usize, column: usize) -> usize {
    let at = |scales: Scales, rows: usize, depth: usize, row: usize, inner: usize| match scales {
        Scales::Tensor => 0,
        Scales::Row => row,
        Scales::Tile => row * depth.div_ceil(BLOCK) + inner / BLOCK,
        Scales::TileOfColumn => inner / BLOCK * rows + row,
        Scales::Block => row / BLOCK * depth.div_ceil(BLOCK) + inner / BLOCK,
        Scales::BlockOfColumn => inner / BLOCK * rows.div_ceil(BLOCK) + row / BLOCK,
    };
    match shared {
        Shared::Rows(scales) => at(scales, rows, columns, row, column),
        Shared::Columns(scales) => at(scales, columns, rows, column, row),
    }
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn casts() {
    let kernel = |from, format, shared, as_is, transposed| quantize::Kernel {
        from,
        format,
        shared,
        as_is,
        transposed,
    };
    for (kernel, sanitizer) in [
        (
            kernel(Out::BF16, E4M3, Shared::Rows(Scales::Tensor), true, true),
            "thread",
        ),
        (
            kernel(Out::F16, E5M2, Shared::Rows(Scales::Block), true, false),
            "address,undefined",
        ),
        (
            kernel(Out::F32, E4M3, Shared::Columns(Scales::Row), false, true),
            "address,undefined",
        ),
        (
            kernel(Out::BF16, E5M2, Shared::Columns(Scales::Tile), true, true),
            "address,undefined",
        ),
        (
            kernel(Out::BF16, E4M3, Shared::Rows(Scales::Tile), true, true),
            "address,undefined",
        ),
    ] {
        let parts = [
            DEVICE,
            &kernel.constants(),
            include_str!("emulated/quantize_device.cpp"),
            &kernel.body(),
            include_str!("emulated/quantize.cpp"),
        ];
        let name = format!(
            "quantize-{}-{}-{sanitizer}",
            kernel.from.name(),
            kernel.format
        );
        let program = compile(&name, &parts.join("\n"), sanitizer);
        for shape in [[16, 16], [128, 128], [144, 272], [304, 32]] {
            check_cast(&program, kernel, shape);
        }
    }
}

fn check_cast(program: &Path, kernel: quantize::Kernel, shape: [usize; 2]) {
    let [rows, columns] = shape;
    let elements = rows * columns;
    let width = kernel.from.bytes();
    let scale_of = |i: usize| scale_at(kernel.shared, shape, i / columns, i % columns);
    let num_scales = 1 + (0..elements).map(scale_of).max().unwrap_or_default();
    let scales: Vec<f32> = (0..num_scales)
        .map(|i| ((i * 37 % 64) as f32 - 32.0).exp2())
        .collect();
    // From far below what 8 bits have to far beyond, with what is no number among them.
    let value = |i: usize| match i % 101 {
        7 => f32::INFINITY,
        8 => f32::NAN,
        9 => 0.0,
        _ => ((i * 7919 % 997) as f32 / 499.0 - 1.0) * ((i * 31 % 80) as f32 - 40.0).exp2(),
    };
    let bytes: Vec<u8> = (0..elements)
        .flat_map(|i| kernel.from.bytes_of(value(i)))
        .collect();
    let (info, blocks) = kernel.launch(rows, columns).unwrap();
    let mut input = words([blocks, num_scales]);
    input.extend(info.iter().flat_map(|word| word.to_le_bytes()));
    input.extend(&bytes);
    input.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    let found = run(program, &input);
    let mut written = Vec::new();
    if kernel.as_is {
        written.push(false);
    }
    if kernel.transposed {
        written.push(true);
    }
    assert_eq!(found.len(), elements * written.len());
    for (part, transposed) in written.into_iter().enumerate() {
        for i in 0..elements {
            let (row, column) = (i / columns, i % columns);
            let at = if transposed { column * rows + row } else { i };
            let found = found[part * elements + at];
            let value = kernel.from.value(&bytes[i * width..(i + 1) * width]);
            let expected = encode(kernel.format, value * scales[scale_of(i)]);
            // Of what is no number, the sign is nobody's.
            let ignored = if value.is_nan() { 0x80 } else { 0 };
            assert_eq!(
                found | ignored,
                expected | ignored,
                "[{row}, {column}] of {shape:?}, {transposed}"
            );
        }
    }
}

/// The kernel's own constants, and what they are derived from.
#[test]
fn names() {
    assert!(Kernel::BODY.contains("NAME(") && transpose::BODY.contains("NAME("));
    assert_ne!(wgmma::NAME, transpose::NAME);
}
