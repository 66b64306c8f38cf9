//! The text of CUDA kernels, compiled for the host: threads of a block are threads, and barriers, TMA and tensor cores
//! are emulated from their definitions (`tests/emulated/`). Loads come late and in any order. Built with the sanitizers
//! of addresses and of threads: a stage that is read before it is full, or filled before it is empty, is a data race.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn_dist_kernels::cuda::product::{BLOCK, Out, Product, Scales};
use burn_dist_kernels::cuda::quantize::{self, Shared};
use burn_dist_kernels::cuda::reference::{Operands, Sums};
use burn_dist_kernels::cuda::wgmma::Kernel;
use burn_dist_kernels::cuda::{transpose, wgmma};
use burn_dist_kernels::float8::reference::encode;
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};

const DEVICE: &str = include_str!("emulated/device.cpp");
const HOPPER: &str = include_str!("emulated/hopper.cpp");

/// Compiles a program with a sanitizer.
fn compile(name: &str, source: &str, sanitizer: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (text, program) = (folder.join(format!("{name}.cpp")), folder.join(name));
    fs::write(&text, source).unwrap();
    let compiled = Command::new("c++")
        .args([
            "-std=c++17",
            "-O1",
            "-g",
            "-w",
            "-pthread",
            &format!("-fsanitize={sanitizer}"),
        ])
        .args(["-fno-sanitize-recover=all", "-o"])
        .args([&program, &text])
        .output()
        .expect("a C++ compiler");
    assert!(
        compiled.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

/// Runs a program on a file and returns what it has appended to it.
fn run(program: &Path, input: &[u8]) -> Vec<u8> {
    let file = program.with_extension("data");
    fs::write(&file, input).unwrap();
    let done = Command::new(program)
        .env("TSAN_OPTIONS", "halt_on_error=1")
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}: {}",
        program.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    fs::read(&file).unwrap().split_off(input.len())
}

fn words(values: impl IntoIterator<Item = usize>) -> Vec<u8> {
    values
        .into_iter()
        .flat_map(|value| (value as u32).to_le_bytes())
        .collect()
}

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

/// CubeCL's source of a product by `mma`. Its instruction in PTX is what is emulated.
#[cfg(feature = "cuda")]
mod mma {
    use burn_dist_kernels::source::{self, Source};

    use super::*;

    /// Returns a source for the host.
    fn on_host(product: &Product) -> String {
        let Source { name, code } = source::mma(product);
        let [a, b] = product.formats;
        let (before, asm) = code.split_once("asm volatile(").expect("an instruction");
        let (instruction, after) = asm.split_once(");").expect("its end");
        let expected = format!("mma.sync.aligned.m16n8k32.row.col.f32.{a}.{b}.f32");
        assert!(instruction.contains(&expected), "{instruction}");
        assert!(!after.contains("asm"), "{after}");
        let registers = |of: &str, count: usize, by: &str| {
            let all = (0..count).map(|i| format!("{by}reg_{of}_{i}"));
            format!("{{{}}}", all.collect::<Vec<_>>().join(", "))
        };
        let call = [
            registers("a", 4, ""),
            registers("b", 2, ""),
            registers("c", 4, ""),
            registers("d", 4, "&"),
        ];
        let kernel = format!("{before}mma({});{after}", call.join(", "));
        let kernel: Vec<&str> = kernel
            .lines()
            .filter(|line| !line.starts_with("#include"))
            .collect();
        let out = match product.out {
            Out::F32 => "float",
            Out::F16 => "__half",
            Out::BF16 => "__nv_bfloat16",
        };
        let is_e5m2 = [a, b].map(|format| u8::from(format == E5M2));
        [
            DEVICE,
            &format!(
                "#define A_E5M2 {}\n#define B_E5M2 {}",
                is_e5m2[0], is_e5m2[1]
            ),
            &format!("#define SHARED {}", source::MMA_SHARED),
            include_str!("emulated/cubecl.cpp"),
            &kernel.join("\n"),
            &format!("typedef {out} Out;\ntypedef {out}_2 Pair;\n#define NAME {name}"),
            &format!("#define BIAS {}", u8::from(product.bias)),
            include_str!("emulated/mma.cpp"),
        ]
        .join("\n")
    }

    /// Tiles of all shapes: `(m, n, k)`.
    const SHAPES: [(usize, usize, usize); 4] =
        [(64, 128, 128), (1, 16, 16), (70, 144, 272), (130, 16, 144)];

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
        let name = format!("mma-{:?}-{}-{sanitizer}", scales[1], out.name());
        let program = compile(&name, &on_host(&of(16, 16, 16)), sanitizer);
        for (m, n, k) in SHAPES {
            let operands = Operands::pseudo_random(of(m, n, k));
            let counts = operands.scales.each_ref().map(Vec::len);
            let [down, across] = source::mma_cubes(&of(m, n, k));
            let mut input = words([across, down].into_iter().chain(counts));
            let strides = [scales[0].strides(m, k), scales[1].strides(n, k)];
            input.extend(words(strides.into_iter().flatten()));
            input.extend(words([m, n, k / 16]));
            input.extend(operands.values.iter().flatten());
            let of_scales = operands.scales.iter().flatten();
            input.extend(of_scales.flat_map(|scale| scale.to_le_bytes()));
            input.extend(operands.bias_bytes());
            operands.check(&run(&program, &input), Sums::F32).unwrap();
        }
    }

    #[test]
    #[ignore = "needs a C++ compiler: cargo xtask kernels"]
    fn with_scales_of_tensors() {
        let scales = [Scales::Tensor; 2];
        products([E4M3, E5M2], scales, Out::BF16, true, "address,undefined");
    }

    #[test]
    #[ignore = "needs a C++ compiler: cargo xtask kernels"]
    fn with_scales_of_rows() {
        let scales = [Scales::Row; 2];
        products([E5M2, E4M3], scales, Out::F32, false, "address,undefined");
    }

    #[test]
    #[ignore = "needs a C++ compiler: cargo xtask kernels"]
    fn with_scales_of_blocks() {
        let scales = [Scales::Tile, Scales::Block];
        products([E4M3, E4M3], scales, Out::F16, true, "address,undefined");
    }

    #[test]
    #[ignore = "needs a C++ compiler: cargo xtask kernels"]
    fn with_scales_of_columns() {
        let scales = [Scales::TileOfColumn; 2];
        products([E4M3, E4M3], scales, Out::BF16, false, "address,undefined");
    }

    #[test]
    #[ignore = "needs a C++ compiler: cargo xtask kernels"]
    fn with_scales_of_blocks_of_columns() {
        let scales = [Scales::Tile, Scales::BlockOfColumn];
        products([E4M3, E4M3], scales, Out::F32, true, "address,undefined");
    }

    #[test]
    #[ignore = "needs a C++ compiler: cargo xtask kernels"]
    fn has_no_data_race() {
        let scales = [Scales::Tile, Scales::Row];
        products([E4M3, E4M3], scales, Out::BF16, false, "thread");
    }
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
